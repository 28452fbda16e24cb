"""The step, hosted: rows in, one step, changed shards and rows out.

Every host uses this room, Spark's state store or another; the formats of shards and rows are here.
"""

__all__ = ["broker_format", "broker_rows", "hosted_broker"]
