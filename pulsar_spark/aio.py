"""The client for asyncio: `from pulsar_spark import aio`, `aio.Client(...)`."""

from pulsar_spark.pulsar.asyncio import *  # noqa: F403 - the same, by a shorter name
