"""The names of `pulsar.exceptions`: the errors of the client."""

from pulsar_spark.connector.client.client_errors import *  # noqa: F403 - all of them, as in Pulsar's client
