"""Producers and consumers without Spark, on the code that Spark's sink and source run.

This room adds no rule: `sink` and `subscription` have them all.
"""
