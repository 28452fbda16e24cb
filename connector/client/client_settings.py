"""What a program says to the client: the enumerations and policies of Pulsar's Python client.

Invariant: names, numbers, arguments and defaults are those of the official client 3.13.
"""

from __future__ import annotations

from enum import Enum

__all__ = [
    "BatchingType", "CompressionType", "ConsumerBatchReceivePolicy", "ConsumerCryptoFailureAction",
    "ConsumerDeadLetterPolicy", "ConsumerKeySharedPolicy", "ConsumerType", "InitialPosition",
    "KeySharedMode", "PartitionsRoutingMode", "ProducerAccessMode", "RegexSubscriptionMode",
]  # fmt: skip


def check_type(kind: type, /, **given: object) -> None:
    """ValueError, as Pulsar's client has it, names an argument that is not of that type."""
    for name, value in given.items():
        if not isinstance(value, kind):
            raise ValueError(  # noqa: TRY004 - as Pulsar's
                f"Argument {name} is expected to be of type {kind.__name__!r} and not "
                f"{type(value).__name__!r}"
            )


def check_type_or_none(kind: type, /, **given: object) -> None:
    check_type(kind, **{name: value for name, value in given.items() if value is not None})


class InitialPosition(Enum):
    Latest = 0
    Earliest = 1


class ConsumerType(Enum):
    Exclusive = 0
    Shared = 1
    Failover = 2
    KeyShared = 3


class CompressionType(Enum):
    NONE = 0
    LZ4 = 1
    ZLib = 2
    ZSTD = 3
    SNAPPY = 4


class PartitionsRoutingMode(Enum):
    UseSinglePartition = 0
    RoundRobinDistribution = 1
    CustomPartition = 2


class BatchingType(Enum):
    Default = 0
    KeyBased = 1


class ProducerAccessMode(Enum):
    Shared = 0
    Exclusive = 1
    WaitForExclusive = 2
    ExclusiveWithFencing = 3


class RegexSubscriptionMode(Enum):
    PersistentOnly = 0
    NonPersistentOnly = 1
    AllTopics = 2


class ConsumerCryptoFailureAction(Enum):
    FAIL = 0
    DISCARD = 1
    CONSUME = 2


class KeySharedMode(Enum):
    AutoSplit = 0
    Sticky = 1


class ConsumerDeadLetterPolicy:
    """When a message is given up, and where it goes then."""

    def __init__(
        self,
        max_redeliver_count: int,
        dead_letter_topic: str | None = None,
        initial_subscription_name: str | None = None,
    ) -> None:
        if max_redeliver_count < 1:
            raise ValueError("max_redeliver_count must be greater than 0")
        self.max_redeliver_count = max_redeliver_count
        self.dead_letter_topic = dead_letter_topic or ""
        self.initial_subscription_name = initial_subscription_name or ""


class ConsumerKeySharedPolicy:
    """How a Key_Shared subscription deals out its keys."""

    def __init__(
        self,
        key_shared_mode: KeySharedMode = KeySharedMode.AutoSplit,
        allow_out_of_order_delivery: bool = False,
        sticky_ranges: list[tuple[int, int]] | None = None,
    ) -> None:
        """`sticky_ranges`: hash ranges from 0 to 65,535, both ends included."""
        if key_shared_mode is KeySharedMode.Sticky and sticky_ranges is None:
            raise ValueError("key_shared_mode Sticky needs sticky_ranges")
        self.key_shared_mode = key_shared_mode
        self.allow_out_of_order_delivery = allow_out_of_order_delivery
        self.sticky_ranges = sticky_ranges or []


class ConsumerBatchReceivePolicy:
    """When `batch_receive` has enough: the first bound reached ends it; -1 is no bound."""

    def __init__(self, max_num_message: int, max_num_bytes: int, timeout_ms: int) -> None:
        if max_num_message <= 0 and max_num_bytes <= 0 and timeout_ms <= 0:
            raise ValueError("At least one of the bounds must be above 0")
        self.max_num_message = max_num_message
        self.max_num_bytes = max_num_bytes
        self.timeout_ms = timeout_ms


DEFAULT_BATCH_RECEIVE = ConsumerBatchReceivePolicy(-1, 10 << 20, 100)
