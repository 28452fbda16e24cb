"""Values by schema: Spark's types, bytes and back, registration in the log.

Rows are the sink's and the source's; this turns one column of them into bytes or back.
"""

__all__ = ["schema_codec", "schema_records", "schema_registration"]
