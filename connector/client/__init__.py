"""Producers and consumers without Spark, on the code that Spark's sink and source run.

No rule of its own: what it can't do through `sink` and `subscription` it does not do.
"""
