"""`pulsar_spark.Admin`: what an administrator does with a root, noun by noun.

Follows Pulsar's `PulsarAdmin`.
"""

from __future__ import annotations

from collections.abc import Mapping

from pulsar_spark.connector.runtime.topics.policies import Policies
from pulsar_spark.connector.runtime.topics.topics import Root
from pulsar_spark.connector.tools.admin.namespaces import Namespaces, Tenants
from pulsar_spark.connector.tools.admin.schemas import Schemas
from pulsar_spark.connector.tools.admin.subscriptions import Subscriptions
from pulsar_spark.connector.tools.admin.topics import Topics


class Admin:
    """Looks after the topics of one root, without Spark.

        admin = pulsar_spark.Admin("s3://bucket/prefix")
        admin.topics.create("orders", partitions=4)
        admin.policies("orders").set(retention_time="3d")
        admin.topics.redrive("orders-billing-DLQ", error="Timeout")

    What is refused is an error of `pulsar_spark.errors`, which says what to do.
    """

    def __init__(
        self, service_url: str | None = None, *, storage: Mapping[str, str] | None = None
    ) -> None:
        """Opens nothing. Without `service_url` the environment's counts.

        `storage` are options of the object store, such as `aws_endpoint`.
        """
        self._root = root = Root.at(service_url, storage)
        self.topics = Topics(root)
        self.subscriptions = Subscriptions(root)
        self.namespaces = Namespaces(root)
        self.tenants = Tenants(root)
        self.schemas = Schemas(root)

    def policies(self, name: str) -> Policies:
        """The policies of a topic (`orders`), or of a namespace with its tenant (`acme/eu`).

        TopicNotFoundError if there is no such topic. A namespace need not be there.
        """
        return Policies(self._root, name)

    def now_ms(self) -> int:
        """The time of the root's clock, by which messages expire."""
        return self._root.clock.wall_ms()
