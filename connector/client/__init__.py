"""A client shaped like Pulsar's, without Spark, on the code that Spark's sink and source run.

This room adds no rule: `sink` and `subscription` have them all. It names, waits and encodes.
"""
