"""The differences of a `non-persistent://` topic, for those who publish to it and read it.

Invariants: it delivers to connected readers, so reading begins where the topic ends at that
instant, after a restart as well; messages older than its time are deleted, needed or not; an option
that needs messages to be kept is refused before anything is stored.
It has files all the same, since sink and source may run on machines that reach no socket of each
other (docs/decisions/0037). Follows Pulsar's `NonPersistentTopic`.
"""

from __future__ import annotations

from typing import Final

from pulsar_spark.broker.machine.retention import kept_ms
from pulsar_spark.broker.protocol.policies import INFINITE
from pulsar_spark.connector.runtime.topics.ledger_store import LedgerStore
from pulsar_spark.connector.runtime.topics.managed_ledger import ManagedLedger
from pulsar_spark.connector.runtime.topics.policies import policies_now
from pulsar_spark.errors import InvalidOptionError
from pulsar_spark.model.topic_name import is_persistent
from pulsar_spark.options.options import Options

_UNFIT_TO_PUBLISH: Final = {
    "chunkingEnabled": "chunks of a message may not all arrive",
    "transactional": "a transaction promises that nothing is lost",
}
_UNFIT_TO_READ: Final = {
    "readCompacted": "nothing of it is kept to be compacted",
    "startingTime": "reading begins when the query connects",
}


def check_publishing(topic: str, options: Options) -> None:
    """InvalidOptionError if a topic of that full name can't have one of a sink's options."""
    _check(topic, options, _UNFIT_TO_PUBLISH)


def check_reading(topic: str, options: Options) -> None:
    """InvalidOptionError if a topic of that full name can't have one of a source's options."""
    _check(topic, options, _UNFIT_TO_READ)
    start = options["startingOffsets"] if options.has("startingOffsets") else "latest"
    if not is_persistent(topic) and start != "latest":
        raise InvalidOptionError(
            f"Topic {topic} is non-persistent: reading begins when the query connects, and "
            "startingOffsets can only be latest."
        )


def check_kept(topic: str) -> None:
    """InvalidOptionError if a topic of that full name keeps nothing for later readers."""
    if not is_persistent(topic):
        raise InvalidOptionError(
            f"Topic {topic} is non-persistent: its messages are for who is connected when they are "
            "published. Read it with spark.readStream."
        )


def delete_old(ledger: ManagedLedger) -> None:
    """Drop the ledgers that are out of the topic's time. A persistent topic stays as it is.

    At most one commit in the time for which the topic keeps messages, and one for their files.
    """
    if is_persistent(ledger.topic):
        return
    keep_ms = kept_ms(ledger.topic, policies_now(ledger))
    if keep_ms == INFINITE:
        return
    now_ms, state = ledger.clock(), ledger.state
    partitions = range(state.partitions)
    first = (each[0].max_publish_time_ms for p in partitions if (each := state.ledgers(p)))
    oldest_ms = min(first, default=now_ms)
    store = LedgerStore(ledger, grace_ms=keep_ms)
    if now_ms - oldest_ms > 2 * keep_ms:
        store.trim({partition: _first_kept(ledger, partition, keep_ms) for partition in partitions})
    if any(now_ms - grave.since_ms > 2 * keep_ms for grave in state.tombstones.values()):
        store.sweep()


def _first_kept(ledger: ManagedLedger, partition: int, keep_ms: int) -> int:
    """The id of the first ledger that is young enough; of the newest, if none is."""
    ledgers, now_ms = ledger.ledgers(partition), ledger.clock()
    young = (each.ledger_id for each in ledgers if now_ms - each.max_publish_time_ms <= keep_ms)
    return next(young, ledgers[-1].ledger_id if ledgers else 0)


def _check(topic: str, options: Options, unfit: dict[str, str]) -> None:
    for name, reason in unfit.items():
        if not is_persistent(topic) and options[name]:
            raise InvalidOptionError(
                f"Topic {topic} is non-persistent, and option {name} can't be had of such a "
                f"topic: {reason}. Leave it out, or publish to persistent://..."
            )
