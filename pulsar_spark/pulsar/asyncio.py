"""The names of `pulsar.asyncio`: the client whose calls are awaited, also as `pulsar_spark.aio`."""

from pulsar_spark.connector.client import client_settings
from pulsar_spark.connector.client.aio import (
    Client,
    Consumer,
    Producer,
    Reader,
    TableView,
    Transaction,
)
from pulsar_spark.connector.client.client_errors import PulsarException
from pulsar_spark.connector.client.client_settings import *  # noqa: F403 - enumerations, policies

__all__ = [
    "Client", "Consumer", "Producer", "PulsarException", "Reader", "TableView", "Transaction",
]  # fmt: skip
__all__ += client_settings.__all__
