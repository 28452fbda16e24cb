"""The names of `_pulsar`, the C++ part of Pulsar's client: enumerations and errors.

Its other names can be imported, and refuse when they are used.
"""

from typing import Any

from pulsar_spark.connector.client import client_settings
from pulsar_spark.connector.client.client_errors import *  # noqa: F403 - all of them
from pulsar_spark.connector.client.client_settings import *  # noqa: F403 - enumerations
from pulsar_spark.connector.client.message import Message, MessageId
from pulsar_spark.connector.inspect.telemetry.client_logs import LoggerLevel
from pulsar_spark.model.schema.schema_info import SchemaInfo, SchemaType

__all__ = ["LoggerLevel", "Message", "MessageId", "SchemaInfo", "SchemaType"]


def __getattr__(name: str) -> Any:
    if name[:1].isupper():
        made = client_settings.absent(f"_pulsar.{name}", "there is no C++ client here")
        return globals().setdefault(name, made)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
