"""The names of `import pulsar`: a program changes one line.

    from pulsar_spark import pulsar

    client = pulsar.Client("memory://orders")

Invariant: nothing is made here, and Spark is not loaded; the classes are those of
`pulsar_spark.connector.client`. docs/from-pulsar-client.md says which names are missing, and why.
"""

from pulsar_spark.connector.client import client_errors, client_settings
from pulsar_spark.connector.client.client import Client
from pulsar_spark.connector.client.client_errors import *  # noqa: F403 - as Pulsar's client has it
from pulsar_spark.connector.client.client_settings import *  # noqa: F403 - enumerations, policies
from pulsar_spark.connector.client.consumer import Consumer
from pulsar_spark.connector.client.message import Message, MessageId
from pulsar_spark.connector.client.producer import Producer
from pulsar_spark.connector.client.reader import Reader, TableView
from pulsar_spark.connector.client.records import BytesSchema
from pulsar_spark.connector.client.transaction import Transaction
from pulsar_spark.connector.inspect.telemetry.client_logs import (
    ConsoleLogger,
    FileLogger,
    LoggerLevel,
)
from pulsar_spark.pulsar import _pulsar, exceptions, schema
from pulsar_spark.version import __version__

__all__ = [
    "BytesSchema", "Client", "ConsoleLogger", "Consumer", "FileLogger", "LoggerLevel", "Message",
    "MessageId", "Producer", "Reader", "TableView", "Transaction", "__version__", "_pulsar",
    "exceptions", "schema",
]  # fmt: skip
__all__ += client_errors.__all__
__all__ += client_settings.__all__
