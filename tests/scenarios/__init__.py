"""Dialogues with a broker: lines that begin with > are said, the lines below are what came of it.

`python -m tests.scenarios --rewrite` writes what comes of them now; read the difference.
"""
