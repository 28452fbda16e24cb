"""Schemas of a topic: what they are, which versions there are, what may follow what.

Values and their bytes are the connector's; here is only what the log has to decide.
"""

__all__ = ["avro_schema", "schema_info", "schema_registry"]
