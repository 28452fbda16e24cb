"""`pulsar_spark.process`: a Python function on each message, in the workers, failures one by one.

    def handle(message):
        if busy():
            raise pulsar_spark.RetryLater("30s")
        store(message.key, message.value)

    outcomes = pulsar_spark.process(messages, handle)
    outcomes.writeStream.format("pulsarlite").option("subscriptionName", "billing").start()

Invariants: every message has one outcome, a row that the sink with `subscriptionName` takes; what
a function raises, or that its process dies or hangs, is the outcome of the message in work and of
no other. Follows Pulsar Functions, where a message whose function fails is acknowledged negatively.
"""

from __future__ import annotations

import inspect
import json
import pickle
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from pulsar_spark.broker.subscriptions.dead_letter import LONGEST_ERROR, times_reconsumed
from pulsar_spark.connector.inspect.telemetry.tracing import __file__ as tracing_file
from pulsar_spark.connector.inspect.telemetry.tracing import flush, traced
from pulsar_spark.connector.runtime.topics.message_columns import IDS
from pulsar_spark.connector.spark.process.child_process import ChildDiedError, ChildProcess, Work
from pulsar_spark.options.option_values import Delay, milliseconds_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import DataType

Outcome = dict[str, Any]
"""The sink's row beside the ids, and the result; empty if all went well."""
RESULT: Final = "result"
_SCHEMA: Final = pa.schema(
    [
        ("ledger_id", pa.int64()), ("entry_id", pa.int64()), ("partition", pa.int32()),
        ("batch_index", pa.int32()), ("topic", pa.string()), ("ack_type", pa.string()),
        ("attempt", pa.int32()), ("delay_ms", pa.int64()), ("reconsume_times", pa.int32()),
        ("properties", pa.map_(pa.string(), pa.string())), ("error", pa.string()),
    ]
)  # fmt: skip


class RetryLater(Exception):  # noqa: N818 - raised to say so, and no error
    """Raised by a function: the message shall go to the retry letter topic, for so long."""

    def __init__(self, delay: Delay, properties: Mapping[str, str] | None = None) -> None:
        """`properties` are added to those of the message. TypeError if one is no text."""
        self.delay_ms = milliseconds_of(delay)
        self.properties = dict(properties or {})
        given: Mapping[Any, Any] = self.properties
        for name, text in given.items():
            if not (isinstance(name, str) and isinstance(text, str)):
                raise TypeError(f"Property {name!r} is {text!r}: names and values are texts.")
        super().__init__(f"retry in {self.delay_ms} ms")


class Reject(Exception):  # noqa: N818 - raised to say so, and no error
    """Raised by a function: the message can never be processed. It becomes a dead letter at once.

    Where the consumer has no dead letter policy, it comes again as any other that failed.
    """

    def __init__(self, reason: str | BaseException = "") -> None:
        """`reason` is in the dead letter's property ERROR."""
        is_error = isinstance(reason, BaseException)
        self.reason = f"{type(reason).__name__}: {reason}" if is_error else str(reason)
        super().__init__(self.reason)


@dataclass(frozen=True, slots=True)
class Message:
    """The message that a function is given. A column that the DataFrame lacks is None, or empty.

    `value` is bytes, or with `valueSchema` what that gives, structs and maps as dicts; then
    `schema_error` says why a value that does not fit is None, with `onSchemaMismatch` `null`.
    """

    value: Any = None
    key: str | None = None
    properties: Mapping[str, str] = field(default_factory=dict)
    topic: str | None = None
    ledger_id: int = -1
    entry_id: int = -1
    partition: int = -1
    batch_index: int = -1
    redelivery_count: int = 0
    schema_error: str | None = None


_OF_A_MESSAGE: Final = {each.name: getattr(Message(), each.name) for each in fields(Message)}
"""Column -> what stands for it where it is missing."""


def process(
    df: DataFrame,
    function: Callable[[Any], object],
    *,
    batch: bool = False,
    timeout: Delay | None = None,
    topic: str | None = None,
    result: DataType | str | None = None,
    tracing: Callable[[], object] | None = None,
) -> DataFrame:
    """Run a function on each message, and say what became of it: rows that acknowledge.

    `function(message)`, with a `Message`, is called in a child of Spark's worker. If it returns,
    whatever it returns, the message is acknowledged. If it raises, kills its process, or takes
    longer than `timeout`, the message is acknowledged negatively, with the error: it comes again by
    the consumer's backoff, and becomes a dead letter in the end. If it raises `RetryLater`, the
    message goes to the retry letter topic; where the DataFrame has no column `properties`, which
    count that, it is acknowledged negatively with that delay. If it raises `Reject`, the message
    becomes a dead letter at once. What the function keeps in memory it keeps for the task, or until
    its process dies.

    With `batch` the function is given Arrow record batches with all of the DataFrame's columns.
    One that fails is halved until the message is found that fails, so others are processed more
    than once; `timeout` is that of one call.

    With a type as `result`, such as `"double"`, what the function returns is in a column `result`
    too; with `batch` it returns an array or a list, with a value for each message. The sink takes
    no such column: use it, then drop it.

    Where the function's process has imported OpenTelemetry, a message whose properties name a trace
    (`traceparent`) has a span of it, in which the function runs; not with `batch`. `tracing()` is
    called once in each such process, before all else: it sets up OpenTelemetry there.
    """
    from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_type
    from pyspark.sql.types import DataType

    from pulsar_spark.connector.spark.functions.acknowledging import with_ids

    try:
        inspect.signature(function).bind(None)
    except TypeError as error:
        raise TypeError(
            f"{function!r} is no function of one argument, a message: {error}."
        ) from error
    except ValueError:
        pass  # one that is written in C does not say what it takes
    df = with_ids(df, topic, IDS)
    if not batch:
        df = df.select(*(name for name in (*_OF_A_MESSAGE, "attempt") if name in df.columns))
    timeout_s = None if timeout is None else milliseconds_of(timeout) / 1000
    outcomes = from_arrow_schema(_SCHEMA)
    if result is None:
        return df.mapInArrow(Processor(function, batch, timeout_s, None, tracing), outcomes)
    type_ = DataType.fromDDL(result) if isinstance(result, str) else result
    processor = Processor(function, batch, timeout_s, to_arrow_type(type_), tracing)
    return df.mapInArrow(processor, outcomes.add(RESULT, type_))


@dataclass(frozen=True)
class Processor:
    """The function that runs in a task: record batches of messages in, of outcomes out."""

    function: Callable[[Any], object]
    batch: bool = False
    timeout_s: float | None = None
    result: pa.DataType | None = None
    """The type of the function's results; None drops them."""
    tracing: Callable[[], object] | None = None

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with ChildProcess(self._work, self.timeout_s) as child:
            for each in batches:
                if each.num_rows:
                    yield self._settled(each, child.run)

    def outcomes(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The outcomes of a batch, found in this process."""
        return self._settled(batch, self._work)

    def _settled(self, batch: pa.RecordBatch, run: Work) -> pa.RecordBatch:
        outcomes = (_halved if self.batch else _in_order)(run, batch)
        returned = [outcome.pop(RESULT, None) for outcome in outcomes]
        rows = _rows(batch, outcomes)
        if self.result is not None:
            rows = rows.append_column(RESULT, pa.array(returned, self.result))
        return rows

    @property
    def _work(self) -> Work:
        return self._whole if self.batch else self._one_by_one

    def _one_by_one(self, batch: pa.RecordBatch, start: int, stop: int) -> Iterator[bytes]:
        rows = batch.slice(start, stop - start)
        if self.tracing is not None:
            _set_up(self.tracing)
        within = traced(self.function)
        call = partial(self._one, function=within or self.function)
        try:
            yield from _each(call, rows)
        finally:
            if within is not None:
                within.close()
        if self.tracing is not None:
            flush()

    def _whole(self, batch: pa.RecordBatch, start: int, stop: int) -> Iterator[bytes]:
        yield _outcome(self._many, batch.slice(start, stop - start))

    def _one(self, message: Message, function: Callable[[Any], object]) -> bytes:
        value = function(message)
        if self.result is None:
            return b""
        return pickle.dumps(pa.scalar(value, self.result).as_py())

    def _many(self, batch: pa.RecordBatch) -> bytes:
        values = self.function(batch)
        if self.result is None:
            return b""
        found = pa.array(values, self.result) if isinstance(values, list) else values
        if not isinstance(found, pa.Array | pa.ChunkedArray) or len(found) != batch.num_rows:
            raise ValueError(
                f"The function was given {batch.num_rows} messages, and returned no array or list "
                f"of as many results, but {type(values).__name__}"
            )
        return pickle.dumps(found.cast(self.result).to_pylist())


def messages_of(batch: pa.RecordBatch) -> Iterator[Message]:
    there = set(batch.schema.names)
    columns: list[Iterable[Any]] = []
    for name, default in _OF_A_MESSAGE.items():
        if name not in there:
            held = [default] * batch.num_rows
        elif name == "value" and pa.types.is_nested(batch.column(name).type):
            held = batch.column(name).to_pylist(maps_as_pydicts="lossy")
        else:
            held = batch.column(name).to_pylist()
        if name == "properties":
            held = [dict(each or ()) for each in held]
        columns.append(held)
    yield from map(Message, *columns)


@cache
def _set_up(tracing: Callable[[], object]) -> None:
    tracing()


# -- outcomes --------------------------------------------------------------------------------------


def _each(call: Callable[[Message], bytes], rows: pa.RecordBatch) -> Iterator[bytes]:
    """The outcome of each message."""
    try:
        messages = list(messages_of(rows))
    except (ValueError, ArithmeticError):  # Python has no such text, or date: whose is it?
        for row in range(rows.num_rows):
            yield _outcome(lambda one: call(*messages_of(one)), rows.slice(row, 1))
        return
    for message in messages:
        yield _outcome(call, message)


def _outcome(function: Callable[[Any], bytes], argument: Any) -> bytes:
    """If it went well, what the function's wrapper has for us, else JSON."""
    try:
        return function(argument)
    except RetryLater as later:
        given = {_escaped(name): _escaped(text) for name, text in later.properties.items()}
        outcome: Outcome = {"delay_ms": later.delay_ms, "properties": given}
    except Reject as never:
        outcome = {"ack_type": "DeadLetter", **_failed(never.reason)}
    except BaseException as error:  # noqa: BLE001 - whatever a function raises is its message's
        outcome = _failed(_text(error))
    return json.dumps(outcome).encode()  # JSON is ASCII here, so no text is too strange for it


def _read(outcome: bytes) -> Outcome:
    if outcome.startswith(b"\x80"):  # as a pickle does, and no JSON
        return {RESULT: pickle.loads(outcome)}  # noqa: S301 - our own child wrote it
    return json.loads(outcome) if outcome else {}


def _failed(text: str) -> Outcome:
    return {"error": _escaped(text)[:LONGEST_ERROR]}


def _escaped(text: str) -> str:
    """The text with escapes instead of surrogates, which are no UTF-8."""
    return text.encode(errors="backslashreplace").decode()


def _text(error: BaseException) -> str:
    """The error's text, and the place where it was raised."""
    try:
        text = f"{type(error).__name__}: {error}"
    except Exception:  # noqa: BLE001 - an error that can't even say what it is
        text = type(error).__name__
    walked = list(traceback.walk_tb(error.__traceback__))[2:]  # without our own
    frames = [each for each in walked if each[0].f_code.co_filename != tracing_file]
    if frames:
        frame, line = frames[-1]
        place = f"{frame.f_code.co_filename}:{line} in {frame.f_code.co_name}"
        text = f"{text[: LONGEST_ERROR - len(place) - 3]} ({place})"
    return text


def _results(run: Work, batch: pa.RecordBatch, start: int, stop: int) -> Iterator[Outcome]:
    try:
        yield from map(_read, run(batch, start, stop))
    except ChildDiedError as died:
        yield _failed(str(died))


def _in_order(run: Work, batch: pa.RecordBatch) -> list[Outcome]:
    """Message by message; the rest of a batch goes to a new child when one dies."""
    outcomes: list[Outcome] = []
    while len(outcomes) < batch.num_rows:
        outcomes.extend(_results(run, batch, len(outcomes), batch.num_rows))
    return outcomes


def _halved(run: Work, batch: pa.RecordBatch) -> list[Outcome]:
    """All at once; what fails is halved until it is a message."""
    outcomes: list[Outcome] = [{}] * batch.num_rows
    left = [(0, batch.num_rows)]
    while left:
        start, stop = left.pop()
        (outcome,) = _results(run, batch, start, stop)
        if RESULT in outcome:
            outcomes[start:stop] = [{RESULT: value} for value in outcome[RESULT]]
        elif "error" in outcome and stop - start > 1:
            middle = (start + stop) // 2
            left += [(middle, stop), (start, middle)]
        else:
            outcomes[start:stop] = [outcome] * (stop - start)
    return outcomes


def _rows(batch: pa.RecordBatch, outcomes: list[Outcome]) -> pa.RecordBatch:
    count = batch.num_rows
    columns: dict[str, pa.Array] = {
        name: batch.column(name).cast(_SCHEMA.field(name).type)
        for name in (*IDS, "topic", "attempt")
        if name in batch.schema.names
    }
    if any(outcomes):
        rows = [_outcome_row(batch, place, outcome) for place, outcome in enumerate(outcomes)]
        for name in ("ack_type", "delay_ms", "reconsume_times", "properties", "error"):
            values = [each.get(name) for each in rows]
            columns[name] = pa.array(values, _SCHEMA.field(name).type)
    else:
        columns["ack_type"] = pa.repeat("Individual", count)
    for each in _SCHEMA:
        columns.setdefault(each.name, pa.nulls(count, each.type))
    return pa.RecordBatch.from_pydict(columns, schema=_SCHEMA)


def _outcome_row(batch: pa.RecordBatch, place: int, outcome: Outcome) -> dict[str, Any]:
    if not outcome:
        return {"ack_type": "Individual"}
    if "error" in outcome:
        return {"ack_type": "Negative", **outcome}
    given = {**outcome, "properties": list(outcome["properties"].items())}
    if "properties" not in batch.schema.names:
        return {"ack_type": "Negative", **given}
    held = dict(batch.column("properties")[place].as_py() or ())
    return {"ack_type": "ReconsumeLater", **given, "reconsume_times": times_reconsumed(held)}
