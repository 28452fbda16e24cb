"""What `pulsar.exceptions` offers: the errors of the client, by Pulsar's names."""

from pulsar_spark.connector.client.client_errors import *  # noqa: F403 - all of them, as in Pulsar's client
