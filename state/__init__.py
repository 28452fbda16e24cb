"""Spark's state stores, hosting the broker.

Imported as `pulsar_spark.state`, never as `state`. Importing the package itself loads nothing.
"""
