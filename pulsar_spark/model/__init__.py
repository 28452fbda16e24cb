"""The values that all floors share: positions, records, topic names, schemas.

Nothing here knows a log, a broker or a consumer.
"""

__all__ = ["described", "topic_name"]
