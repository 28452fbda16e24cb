"""The Spark data source, its readers and writers, and the session.

No topic, no log: this room would serve another data source as well.
"""

__all__ = ["acknowledgment_sink", "data_source", "session", "shipping", "stream_writer"]
