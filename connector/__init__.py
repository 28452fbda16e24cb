"""Spark's Data Source API over the ledger store: source, sink, sessions, the command line.

Imported as `pulsar_spark.connector`, never as `connector`. Importing the package itself loads
nothing.
"""
