"""Runs a program, which is a list of steps, and returns its trace: one entry for each step.

    {"call": "client.subscribe", "args": {"topic": {"$topic": "a"}, ...}, "as": "c"}
    {"call": "c.receive", "args": {"timeout_millis": 500}, "as": "m"}
    {"do": "drain", "from": ["c"], "then": "acknowledge", "order": "exact"}

A `call` names an object and its method; the object `client` is there from the beginning, and
`pulsar.NAME`, `asyncio.NAME`, `schema.NAME` call what a module has. What a call returns is named by
`as`. What is awaitable is awaited.

Invariants: each step adds one entry to the trace, an error included; what a program has made is
closed at its end; this module needs nothing of this repository.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import json
from collections.abc import Callable
from typing import Any

from tests.programs import trace
from tests.programs.host import Host
from tests.programs.values import decoded

Step = dict[str, Any]
QUIET_MS = 400
"""A drain has ended when nothing came for so long."""
NOTHING_MS = 1_800
"""A drain of nothing waits so long: a Pulsar activates a Failover consumer after a second."""
POLL_MS = 50
"""A drain of several waits so long at each."""
FIRST_MS = 4_000
"""A drain waits so long for what it expects."""
AWAITED_S = 3.0
"""A call of asyncio is given up after this."""
KINDS = ("Client", "Producer", "Consumer", "Reader", "TableView", "Message", "MessageId")
TIMEOUT = "timeout_millis"
STATIC = ("pulsar", "asyncio", "schema", "MessageId")
_MADE = {"create_producer", "subscribe", "create_reader", "create_table_view"}


class Interpreter:
    """One run of a program."""

    def __init__(self, host: Host, prefix: str) -> None:
        self.host, self._prefix = host, prefix
        self.reach: set[str] = set()
        """The calls and arguments of the public interface that were used."""
        self.describer = trace.Describer(f"{prefix}-", host.now_ms)
        self.named: dict[str, Any] = {}
        self._topics: dict[str, str] = {}
        self._collected: dict[str, list[Any]] = {}
        self._made: dict[str, Any] = {}
        self._receiving: dict[str, asyncio.Future[Any]] = {}
        self._loop: asyncio.AbstractEventLoop | None = None

    def run(self, steps: list[Step]) -> list[Any]:
        self.named["client"] = self.host.pulsar.Client(self.host.url)
        try:
            return [self._step(each) for each in steps]
        finally:
            self._close()

    # -- for the arguments ---------------------------------------------------------------------

    def topic(self, name: str) -> str:
        return f"{self._prefix}-{name}"

    def once(self, name: str, make: Callable[[], Any]) -> Any:
        if name not in self._made:
            self._made[name] = make()
        return self._made[name]

    def construct(self, name: str, args: dict[str, Any]) -> Any:
        self._reached(name, "__init__", args)
        return getattr(self.host.pulsar, name)(**args)

    def id_of(self, held: Any) -> Any:
        return held.message_id() if hasattr(held, "message_id") else held

    def listener(self, name: str, then: str | None) -> Callable[..., None]:
        """A listener of a consumer, a reader or a table view, which collects what it is given."""
        collected = self._collected.setdefault(name, [])

        def listen(source: Any, message: Any) -> None:
            if isinstance(source, str):  # a table view's key
                collected.append(("", {"key": source, "value": self.describer.plain(message)}))
                return
            collected.append((name, self.describer.message(message)))
            if then == "raise":
                raise RuntimeError("a listener that fails")
            if then is not None:
                getattr(source, then)(message)

        return listen

    def callback(self, name: str) -> Callable[..., None]:
        """A callback of `send_async` or `for_each`."""
        collected = self._collected.setdefault(name, [])

        def call(first: Any, second: Any) -> None:
            if isinstance(first, str):
                collected.append(("", {"key": first, "value": self.describer.plain(second)}))
            else:
                batch_index = second.batch_index() if first.name == "Ok" else -1
                collected.append(("", {"result": first.name, "batch_index": batch_index}))

        return call

    # -- steps ---------------------------------------------------------------------------------

    def _step(self, step: Step) -> Any:
        if self._lacks(step):
            return trace.ABSENT
        try:
            if "call" in step:
                return self._described(step, self._notified(step))
            return getattr(self, f"_{step['do']}")(step)
        except Exception as raised:  # noqa: BLE001 - whatever it is, it is part of the trace
            return trace.error(raised, self.host)

    def _lacks(self, step: Step) -> bool:
        """Say if a step is about what could not be made."""
        names = [step["call"].rsplit(".", 1)[0]] if "call" in step else step.get("from", [])
        return any(each not in self.named and each not in STATIC for each in names)

    def _notified(self, step: Step) -> Any:
        """The result of a call, which is awaited if it can be."""
        called = self._call(step)
        if not inspect.isawaitable(called):
            return called
        return self._awaited(asyncio.wait_for(called, step.get("for_s", AWAITED_S)))

    def _call(self, step: Step) -> Any:
        name, method = step["call"].rsplit(".", 1)
        args = {each: decoded(value, self) for each, value in step.get("args", {}).items()}
        for each in ("producer_name", "consumer_name"):
            if isinstance(args.get(each), str):
                self.describer.given_names.add(args[each])
        if name in ("pulsar", "asyncio", "schema"):
            owner = getattr(self.host, name)
            self._reached(f"{'asyncio.' * (name == 'asyncio')}{method}", "__init__", args)
        else:
            owner = self.named[name] if name != "MessageId" else self.host.pulsar.MessageId
            self._reached("MessageId" if name == "MessageId" else self._kind(owner), method, args)
        if not self._is_async(owner):
            return getattr(owner, method)(**args)

        async def call() -> Any:
            called = getattr(owner, method)(**args)
            return await called if inspect.isawaitable(called) else called

        return call()

    def _described(self, step: Step, returned: Any) -> Any:
        """What the trace says of a call's result, which is kept by its name."""
        if "as" in step:
            self.named[step["as"]] = returned
        name, method = step["call"].rsplit(".", 1)
        args = step.get("args", {})
        if method in _MADE:
            self._topics[step.get("as", "")] = self._topic_of(args)
            return type(returned).__name__
        topic = self._topics.get(name, "")
        if method == "send":
            content = decoded(args.get("content"), self)
            text = json.dumps(args.get("content"), sort_keys=True)
            if isinstance(content, bytes):
                text = trace.content(content)
            return self.describer.sent(returned, text, topic)
        value = step.get("value", False)
        describe: dict[str, Callable[[Any], Any]] = {
            "receive": lambda message: self.describer.message(message, value),
            "read_next": lambda message: self.describer.message(message, value),
            "batch_receive": lambda messages: [self.describer.message(each) for each in messages],
            "serialize": lambda data: type(data).__name__,
            "producer_name": self.describer.name,
            "consumer_name": self.describer.name,
            "publish_timestamp": lambda ms: abs(self.host.now_ms() - ms) < trace.RECENT_MS,
        }
        if method in describe:
            return describe[method](returned)
        if hasattr(returned, "ledger_id"):
            return self.describer.id(returned, topic)
        return self.describer.plain(returned)

    def _sleep(self, step: Step) -> None:
        self.host.sleep(step["ms"] / 1000)

    def _drain(self, step: Step) -> Any:
        """Receive from consumers or readers until nothing has come for a while."""
        found: list[tuple[str, dict[str, Any]]] = []
        most, expected = step.get("most"), step.get("expected", 0)
        begun_ms, heard_ms = self.host.now_ms(), self.host.now_ms()
        quiet_ms = step.get("quiet_ms", QUIET_MS)
        still_ms = max(quiet_ms, NOTHING_MS)
        kept: list[Any] = []
        while most is None or len(found) < most:
            now_ms = self.host.now_ms()
            missing = len(found) < expected and now_ms - begun_ms < FIRST_MS
            if now_ms - heard_ms >= (quiet_ms if found else still_ms) and not missing:
                break
            for name in step["from"]:
                message = self._next(name, quiet_ms if len(step["from"]) == 1 else POLL_MS)
                if message is not None:
                    heard_ms = self.host.now_ms()
                    found.append((name, self.describer.message(message, step.get("value", False))))
                    kept.append(message)
                    self._then(step.get("then"), name, message)
        if "as" in step:
            self.named.update({f"{step['as']}{n}": each for n, each in enumerate(kept)})
        for hidden in step.get("without", ()):
            for _, each in found:
                each.pop(hidden, None)
        return trace.ordered(found, step.get("order", "exact"))

    def _next(self, name: str, timeout_ms: int) -> Any:
        """The next message of a consumer or a reader, None if there is none in that time."""
        source = self.named[name]
        method = "receive" if hasattr(source, "receive") else "read_next"
        if self._is_async(source):
            self._reached(self._kind(source), method, {})
            return self._next_awaited(name, method)
        self._reached(self._kind(source), method, {TIMEOUT: timeout_ms})
        try:
            return getattr(source, method)(timeout_ms)
        except self.host.pulsar.Timeout:
            return None

    def _next_awaited(self, name: str, method: str) -> Any:
        """The same of asyncio: a call that found nothing goes on, for whoever asks next."""

        async def next_of() -> Any:
            if name not in self._receiving:
                call = getattr(self.named[name], method)()
                self._receiving[name] = asyncio.ensure_future(call)
            done, _ = await asyncio.wait({self._receiving[name]}, timeout=0.05)
            return self._receiving.pop(name).result() if done else None

        return self._awaited(next_of())

    def _then(self, then: str | None, name: str, message: Any) -> None:
        if then is None:
            return
        source = self.named[name]
        self._reached(self._kind(source), then, {"message": message})
        done = getattr(source, then)(message)
        if inspect.isawaitable(done):
            self._awaited(done)

    def _wait(self, step: Step) -> Any:
        """Wait until a listener or a callback was called so often, and a little for no more."""
        collected = self._collected[step["listener"]]
        waited_s = 0.0
        while len(collected) < step["count"] and waited_s < step.get("at_most_s", 6):
            self.host.sleep(0.05)
            waited_s += 0.05
        self.host.sleep(step.get("quiet_ms", 200) / 1000)
        found, collected[:] = list(collected), []
        return trace.ordered(found, step.get("order", "exact"))

    def _compare(self, step: Step) -> str:
        left, right = (decoded(step[side], self) for side in ("left", "right"))
        return "<" if left < right else "=" if left == right else ">" if left > right else "?"

    def _text(self, step: Step) -> str:
        return trace.shape(self.describer.topic(str(decoded(step["of"], self))))

    def _type_of(self, step: Step) -> str:
        return type(decoded(step["of"], self)).__name__

    def _gather(self, step: Step) -> Any:
        """Await several calls at once; their results in the order of the calls, or as a set."""
        calls = step["calls"]

        async def gathered() -> list[Any]:
            timed = [asyncio.wait_for(self._call(each), AWAITED_S) for each in calls]
            return await asyncio.gather(*timed, return_exceptions=True)

        found = []
        for each, returned in zip(calls, self._awaited(gathered()), strict=True):
            if isinstance(returned, Exception):
                found.append(trace.error(returned, self.host))
            else:
                found.append(self._described(each, returned))
        if step.get("order") == "set":
            found.sort(key=str)
        return found

    def _cancel(self, step: Step) -> str:
        """Cancel a call of asyncio after some milliseconds."""

        async def cancelled() -> str:
            task = asyncio.ensure_future(self._call(step["of"]))
            await asyncio.sleep(step.get("after_ms", 100) / 1000)
            task.cancel()
            try:
                await task
            except asyncio.CancelledError:
                return "cancelled"
            return "done"

        return str(self._awaited(cancelled()))

    def _create_partitioned(self, step: Step) -> None:
        self.host.create_partitioned(self.topic(step["topic"]), step["partitions"])

    def _update_partitions(self, step: Step) -> None:
        self.host.update_partitions(self.topic(step["topic"]), step["partitions"])

    def _terminate(self, step: Step) -> None:
        self.host.terminate(self.topic(step["topic"]))

    def _delete(self, step: Step) -> None:
        self.host.delete(self.topic(step["topic"]))

    def _compact(self, step: Step) -> None:
        self.host.compact(self.topic(step["topic"]))

    def _backlog(self, step: Step) -> int:
        return self.host.backlog(self.topic(step["topic"]), step["subscription"])

    # -- inside --------------------------------------------------------------------------------

    def _topic_of(self, args: dict[str, Any]) -> str:
        topic = args.get("topic")
        return str(topic.get("$topic", "")) if isinstance(topic, dict) else ""

    def _reached(self, kind: str, method: str, args: dict[str, Any]) -> None:
        self.reach.add(f"{kind}.{method}()")
        self.reach.update(f"{kind}.{method}({name})" for name in args)

    def _kind(self, held: Any) -> str:
        if hasattr(held, "ledger_id"):
            return "MessageId"
        name = type(held).__name__
        return f"asyncio.{name}" if self._is_async(held) else name

    def _is_async(self, held: Any) -> bool:
        kinds = (getattr(self.host.asyncio, kind, None) for kind in KINDS[:4])
        return isinstance(held, tuple(kind for kind in kinds if isinstance(kind, type)))

    def _awaited(self, awaitable: Any) -> Any:
        if self._loop is None:
            self._loop = asyncio.new_event_loop()

        async def awaited() -> Any:
            return await awaitable

        return self._loop.run_until_complete(awaited())

    def _close(self) -> None:
        clients = [each for each in self.named.values() if type(each).__name__ == "Client"]
        for each in reversed(clients):
            with contextlib.suppress(Exception):
                done = each.close()
                if inspect.isawaitable(done):
                    self._awaited(asyncio.wait_for(done, AWAITED_S))
        if self._loop is not None:
            for each in self._receiving.values():
                each.cancel()
            self._loop.run_until_complete(asyncio.sleep(0))
            self._loop.close()
