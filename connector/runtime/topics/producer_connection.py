"""A sink's way to publish to a topic in its access mode, and the error when it may not.

Invariants: a producer is registered in the topic's log before its first commit there, and each
commit is checked against the registry that it follows; waiting ends when the topic is free; a
producer whose process has ended, as this machine can tell, is in nobody's way.
Follows Pulsar's `ServerCnx.handleProducer`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

from pulsar_spark.connector.runtime.topics.managed_ledger import ManagedLedger
from pulsar_spark.connector.runtime.topics.policies import max_producers
from pulsar_spark.connector.storage.polling import pause_s
from pulsar_spark.connector.storage.process_identity import UNKNOWN, is_gone
from pulsar_spark.errors import ProducerBusyError, ProducerFencedError
from pulsar_spark.log.ledger_commit import Commit
from pulsar_spark.log.ledger_log import TopicState
from pulsar_spark.log.producer_registry import ProducerAccessMode, ProducerClaim, ProducerRegistry
from pulsar_spark.options.options import Options


def claim_of(
    options: Options, name: str, incarnation: str, process: str = UNKNOWN
) -> ProducerClaim:
    """The claim of a sink, whether or not an option asks how it shares its topic.

    `process` is the one that the producer ends with, if no other can take it up.
    """
    is_requested = options.has("accessMode")
    mode = ProducerAccessMode(options["accessMode"]) if is_requested else ProducerAccessMode.SHARED
    return ProducerClaim(name, mode, incarnation, options["producerLease"], is_requested, process)


def is_registered(ledger: ManagedLedger, claim: ProducerClaim) -> bool:
    """True if the topic is to know of the producer: an option asks for it, or it counts them."""
    return claim.is_requested or bool(max_producers(ledger))


def connect(ledger: ManagedLedger, claim: ProducerClaim) -> None:
    """Register the producer; return when it may publish.

    ProducerFencedError or ProducerBusyError if it may not, and does not wait for it.
    """
    clock, begun_s = ledger.store.clock, ledger.store.clock.monotonic_s()
    may_publish = False

    def claimed(known: ProducerRegistry, now_ms: int) -> ProducerRegistry:
        nonlocal may_publish
        left = known.without_ended(_ended(known))
        registry, may_publish = left.claim(claim, now_ms, max_producers(ledger))
        return registry

    while True:
        with reported(ledger, claim):
            _change(ledger, claimed)
        if may_publish:
            return
        clock.sleep(pause_s(clock.monotonic_s() - begun_s, remote=ledger.store.remote))
        ledger.refresh()


def release_ended(ledger: ManagedLedger) -> bool:
    """Take the producers out whose processes have ended; whether there were any."""
    return _change(ledger, lambda known, _: known.without_ended(_ended(known)))


def disconnect(ledger: ManagedLedger, claim: ProducerClaim) -> None:
    """Take the producer out of the registry, if it is in it."""
    _change(ledger, lambda known, _: known.leave(claim))


def _ended(known: ProducerRegistry) -> set[str]:
    """The processes of its producers that are no more."""
    return {
        process for process in {each.process for each in known.present.values()} if is_gone(process)
    }


def _change(
    ledger: ManagedLedger, change: Callable[[ProducerRegistry, int], ProducerRegistry]
) -> bool:
    """Commit the registry that `change` makes of the present one and the time, if it is another.

    Returns whether it was.
    """

    def build(state: TopicState, new: Commit) -> Commit | None:
        known = ProducerRegistry.from_json_value(state.producers)
        registry = change(known, new.timestamp_ms)
        if registry == known:
            return None
        producers = registry.to_json_value()
        return replace(new, producers=producers)

    return ledger.commit(build) is not None


@contextmanager
def reported(ledger: ManagedLedger, claim: ProducerClaim | None) -> Iterator[None]:
    """Add to an error of the body which topic it is about, and what to do."""
    try:
        yield
    except ProducerBusyError as error:
        raise ProducerBusyError(
            f"{error.message}. Nothing was published to {ledger.topic}. Stop that producer, wait "
            "until its producerLease is over, take the topic over with accessMode "
            "ExclusiveWithFencing, or, if it is a limit, `pulsarlite topics set-max-producers`."
        ) from error
    except ProducerFencedError as error:
        mode = claim.access_mode.value if claim else "none"
        raise ProducerFencedError(
            f"{error.message} (accessMode {mode}). Nothing was published to {ledger.topic}: "
            "another producer has the topic. Stop one of the two; accessMode WaitForExclusive "
            "waits for the other's end, ExclusiveWithFencing takes the topic over."
        ) from error
