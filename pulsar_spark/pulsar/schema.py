"""The names of `pulsar.schema`: records, their fields, and schemas."""

from pulsar_spark.connector.client.records import *  # noqa: F403 - all of them, as in Pulsar's client
