"""Acknowledging with DataFrames: `pulsar_spark.acknowledge` and its three relatives write now.

    def done(batch, batch_id):
        work(batch)
        pulsar_spark.acknowledge(batch, "billing", batch_id=batch_id)

Invariants: of a DataFrame only the columns that say which message it is are used, whatever else it
has; with `batch_id` a repeated micro-batch acknowledges once. A streaming DataFrame is written by
its own query, and `pulsar_spark.acknowledgements` makes the rows for it. Follows Pulsar's
`Consumer`: acknowledge, negativeAcknowledge, acknowledgeCumulative, reconsumeLater.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, TypedDict

from pyspark.errors import PySparkException
from pyspark.sql import functions

from pulsar_spark.broker.subscriptions.dead_letter import RECONSUMETIMES
from pulsar_spark.connector.runtime.acknowledging.acknowledgment_rows import KINDS
from pulsar_spark.connector.runtime.topics.message_columns import IDS
from pulsar_spark.connector.runtime.topics.topics import root_options, service_url_of
from pulsar_spark.connector.spark.data_source import register
from pulsar_spark.errors import InvalidMessageError, InvalidOptionError
from pulsar_spark.options.option_values import Delay, milliseconds_of

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from typing_extensions import Unpack


class Writing(TypedDict, total=False):
    """The place and manner of writing acknowledgements; every field may be left out, or be None.

    `topic` names the messages' topic where they have no such column. `batch_id`: a second write
    with the same `application` and batch id does nothing; in `foreachBatch` the application is by
    default the query, and where one function acknowledges twice for a subscription in a
    micro-batch, each call needs one of its own. `storage` are options of the object store. With
    `ack_receipt_enabled` the call returns when the broker has it, or raises: BrokerAbsentError if
    that takes longer than `operation_timeout` (30 s).
    """

    service_url: str | None
    topic: str | None
    storage: Mapping[str, str] | None
    batch_id: int | None
    application: str | None
    ack_receipt_enabled: bool
    operation_timeout: Delay


def acknowledge(df: DataFrame, subscription: str, **how: Unpack[Writing]) -> None:
    """Acknowledge the messages of a batch DataFrame, one by one, now; with `batch_id` once.

    It is what `foreachBatch` hands over, for instance. With a column `attempt`, here and for the
    others, what was delivered before a seek is left alone. The keywords are those of `Writing`.
    InvalidOptionError for a stream: `acknowledgements` is for those.
    """
    _write(df, subscription, "Individual", {}, how)


def acknowledge_cumulative(df: DataFrame, subscription: str, **how: Unpack[Writing]) -> None:
    """Acknowledge all messages up to the furthest of these, in each topic partition.

    Only of an Exclusive or Failover subscription: BrokerRefusedError for the others, and nothing is
    written. The rest is as for `acknowledge`.
    """
    _write(df, subscription, "Cumulative", {}, how)


def negative_acknowledge(
    df: DataFrame,
    subscription: str,
    *,
    delay: Delay | None = None,
    error: str | Column | None = None,
    **how: Unpack[Writing],
) -> None:
    """Give the messages back: they come again after the delay, or the consumer's own.

    With a dead letter policy one that came too often becomes a dead letter instead, with the
    `error` that was said last: a text, or a column. With a column `attempt` what has gone out
    again meanwhile is left alone. The rest is as for `acknowledge`.
    """
    _write(df, subscription, "Negative", details_of_negative(delay, error), how)


def reconsume_later(
    df: DataFrame,
    subscription: str,
    delay: Delay,
    *,
    properties: Mapping[str, str] | None = None,
    error: str | Column | None = None,
    **how: Unpack[Writing],
) -> None:
    """Copy the messages to the retry letter topic, from which they come after the delay.

    How often that was done stands in a message's properties, so they have to be among the
    columns: read with `includeProperties`. The rest is as for `acknowledge`.
    """
    details = details_of_later(df, delay, properties, error)
    _write(df, subscription, "ReconsumeLater", details, how)


def acknowledgements(
    df: DataFrame,
    ack_type: str = "Individual",
    *,
    topic: str | None = None,
    delay: Delay | None = None,
    error: str | Column | None = None,
    properties: Mapping[str, str] | None = None,
) -> DataFrame:
    """The rows that acknowledge the messages of a stream, for `writeStream`.

    Its query writes them with the option `subscriptionName`. `ack_type` is Individual, Cumulative,
    Negative, DeadLetter, or ReconsumeLater, which needs a `delay` and the column `properties`.
    """
    if ack_type not in KINDS:
        raise InvalidOptionError(f"No ack_type {ack_type!r}: there is {', '.join(KINDS)}.")
    if ack_type == "ReconsumeLater":
        if delay is None:
            raise InvalidOptionError("ReconsumeLater needs a delay, such as delay='10m'.")
        details = details_of_later(df, delay, properties, error)
    else:
        details = details_of_negative(delay, error)
    return rows_that_acknowledge(df, ack_type, details, topic)


def details_of_negative(delay: Delay | None, error: str | Column | None) -> dict[str, Column]:
    details = {}
    if delay is not None:
        details["delay_ms"] = functions.lit(milliseconds_of(delay)).cast("bigint")
    if error is not None:
        details["error"] = functions.lit(error).cast("string")
    return details


def details_of_later(
    df: DataFrame,
    delay: Delay,
    properties: Mapping[str, str] | None,
    error: str | Column | None,
) -> dict[str, Column]:
    details = {**details_of_negative(delay, error), "reconsume_times": _reconsume_times(df)}
    if properties:
        flat = [functions.lit(text) for pair in properties.items() for text in pair]
        details["properties"] = functions.create_map(*flat)
    return details


def _write(
    df: DataFrame, subscription: str, ack_type: str, details: Mapping[str, Column], how: Writing
) -> None:
    if unknown := how.keys() - Writing.__annotations__.keys():
        raise TypeError(f"unexpected keyword argument {min(unknown)!r}")
    if df.isStreaming:
        raise InvalidOptionError(
            "This is a stream, which its own query writes: "
            "pulsar_spark.acknowledgements(df).writeStream, or call this in foreachBatch."
        )
    rows = rows_that_acknowledge(df, ack_type, details, how.get("topic"))
    batch_id, application = how.get("batch_id"), how.get("application")
    given = root_options(service_url_of(how.get("service_url")), how.get("storage"))
    given["subscriptionName"] = subscription
    if how.get("ack_receipt_enabled"):
        given["ackReceiptEnabled"] = "true"
        if (timeout := how.get("operation_timeout")) is not None:
            given["operationTimeout"] = f"{milliseconds_of(timeout)}ms"
    if batch_id is not None:
        who = application or query_of_batch(df)
        given |= {"txnAppId": f"{who}/{subscription}/{ack_type}", "txnVersion": str(batch_id)}
    elif application is not None:
        raise InvalidOptionError("application needs batch_id: the number of this write.")
    register(df.sparkSession)
    rows.write.format("pulsarlite").mode("append").options(**given).save()


def rows_that_acknowledge(
    df: DataFrame, ack_type: str, details: Mapping[str, Column], topic: str | None
) -> DataFrame:
    named = with_ids(df, topic, IDS[:2])
    columns = [named[name] for name in (*IDS, "topic", "attempt") if name in named.columns]
    columns.append(functions.lit(ack_type).alias("ack_type"))
    columns += [column.alias(name) for name, column in details.items()]
    return named.select(*columns)


def with_ids(df: DataFrame, topic: str | None, needed: Sequence[str]) -> DataFrame:
    """The DataFrame with a column `topic`. InvalidMessageError if it does not name its messages."""
    missing = [name for name in needed if name not in df.columns]
    if missing:
        raise InvalidMessageError(
            f"The DataFrame has no column {missing[0]}: a message is known by {', '.join(IDS)} "
            "and topic. Keep these columns of what was read."
        )
    if "topic" in df.columns:
        return df
    if topic is None:
        raise InvalidMessageError(
            "The DataFrame has no column topic: keep it of what was read, or say topic=..."
        )
    return df.withColumn("topic", functions.lit(topic))


def _reconsume_times(df: DataFrame) -> Column:
    if "reconsume_times" in df.columns:
        return df["reconsume_times"]
    if "properties" not in df.columns:
        raise InvalidMessageError(
            "The DataFrame has no column properties, which say how often a message was "
            'reconsumed before: read with .option("includeProperties", "true").'
        )
    return functions.try_element_at(df["properties"], functions.lit(RECONSUMETIMES)).try_cast("int")


def query_of_batch(df: DataFrame) -> str:
    """The query whose micro-batch this thread works on."""
    try:
        context = df.sparkSession.sparkContext
        query_id = context.getLocalProperty("sql.streaming.queryId")
    except PySparkException:  # Spark Connect has no context
        query_id = None
    if not query_id:
        raise InvalidOptionError(
            "Spark does not say which query this is: give application=..., a text that no other "
            "writer uses, together with batch_id."
        )
    return str(query_id)
