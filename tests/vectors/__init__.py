"""Vectors recorded from Pulsar's own classes, and the checker that runs every case of them.

In each file `source` names the class and the commit of Pulsar that was run, `note` what the
fields mean. `python -m tests.vectors.check FILE...` runs them.
"""
