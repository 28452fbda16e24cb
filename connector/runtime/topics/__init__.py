"""Topics below a root, and the protocol of their logs: commit, snapshot, pointer, decision.

What a commit means is decided in `pulsar_spark/log`; here it is put where others find it.
"""
