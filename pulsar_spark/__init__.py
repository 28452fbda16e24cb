"""Apache Pulsar's messaging for Spark, with nothing to operate.

    import pulsar_spark
    spark = pulsar_spark.session()
    flights = spark.readStream.format("pulsarlite").option("topic", "flights").load()

Invariant: importing this module loads nothing but the standard library's lightest parts. Every
public name is loaded at its first use (PEP 562), so `import pulsar_spark` costs no pyspark, no
numpy and no pyarrow; a test counts the modules.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from pulsar_spark.version import __version__

if TYPE_CHECKING:
    from pulsar_spark.connector.client.client import Client
    from pulsar_spark.connector.inspect.verification.verify import verify
    from pulsar_spark.connector.inspect.views.queue_dataset import dataset
    from pulsar_spark.connector.spark.data_source import register
    from pulsar_spark.connector.spark.functions.acknowledging import (
        acknowledge,
        acknowledge_cumulative,
        acknowledgements,
        negative_acknowledge,
        reconsume_later,
    )
    from pulsar_spark.connector.spark.functions.batch_transaction import transaction
    from pulsar_spark.connector.spark.functions.processing import (
        Message,
        Reject,
        RetryLater,
        process,
    )
    from pulsar_spark.connector.spark.session import session
    from pulsar_spark.connector.spark.shipping import ship
    from pulsar_spark.connector.tools.admin.admin import Admin
    from pulsar_spark.errors import PulsarliteError
    from pulsar_spark.state.broker_query import standalone

__all__ = [
    "Admin", "Client", "Message", "PulsarliteError", "Reject", "RetryLater", "__version__",
    "acknowledge", "acknowledge_cumulative", "acknowledgements", "dataset", "negative_acknowledge",
    "process", "reconsume_later", "register", "session", "ship", "standalone", "transaction",
    "verify",
]  # fmt: skip

_HOME_OF = {
    "Admin": "pulsar_spark.connector.tools.admin.admin",
    "Client": "pulsar_spark.connector.client.client",
    "Message": "pulsar_spark.connector.spark.functions.processing",
    "PulsarliteError": "pulsar_spark.errors",
    "Reject": "pulsar_spark.connector.spark.functions.processing",
    "RetryLater": "pulsar_spark.connector.spark.functions.processing",
    "acknowledge": "pulsar_spark.connector.spark.functions.acknowledging",
    "acknowledge_cumulative": "pulsar_spark.connector.spark.functions.acknowledging",
    "acknowledgements": "pulsar_spark.connector.spark.functions.acknowledging",
    "dataset": "pulsar_spark.connector.inspect.views.queue_dataset",
    "negative_acknowledge": "pulsar_spark.connector.spark.functions.acknowledging",
    "process": "pulsar_spark.connector.spark.functions.processing",
    "reconsume_later": "pulsar_spark.connector.spark.functions.acknowledging",
    "register": "pulsar_spark.connector.spark.data_source",
    "session": "pulsar_spark.connector.spark.session",
    "ship": "pulsar_spark.connector.spark.shipping",
    "standalone": "pulsar_spark.state.broker_query",
    "transaction": "pulsar_spark.connector.spark.functions.batch_transaction",
    "verify": "pulsar_spark.connector.inspect.verification.verify",
}
"""Public name -> the module that defines it. The imports under TYPE_CHECKING say the same."""

if not TYPE_CHECKING:  # a type checker takes a misspelt name for any, where there is a __getattr__

    def __getattr__(name: str) -> Any:
        if name not in _HOME_OF:
            message = f"module {__name__!r} has no attribute {name!r}"
            raise AttributeError(message)
        value = getattr(import_module(_HOME_OF[name]), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
