"""The client's settings: the enumerations and policies of Pulsar's Python client.

Invariants: names, numbers, arguments and defaults are those of the official client 3.13; what is
not here (`Absent`) is a class all the same, so that a program may import it and derive from it, and
whoever makes an object of it gets an OperationNotSupported that says what there is instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from itertools import pairwise
from typing import Any, ClassVar, Final, NoReturn

from pulsar_spark.connector.client.client_errors import OperationNotSupported

__all__ = [
    "Authentication", "AuthenticationAthenz", "AuthenticationBasic", "AuthenticationOauth2",
    "AuthenticationTLS", "AuthenticationToken", "AutoClusterFailover", "BatchReceivePolicy",
    "BatchingType", "CompressionType", "ConsumerBatchReceivePolicy",
    "ConsumerCryptoFailureAction", "ConsumerDeadLetterPolicy", "ConsumerKeySharedPolicy",
    "ConsumerType", "Context", "CryptoKeyReader", "DeadLetterPolicyBuilder", "EncryptionContext",
    "EncryptionKey", "Function", "IdentitySerDe", "InitialPosition", "KeySharedMode",
    "KeySharedPolicy", "MessageBatch", "PartitionsRoutingMode", "PickleSerDe",
    "ProducerAccessMode", "RegexSubscriptionMode", "SerDe", "ServiceInfo", "ServiceInfoProvider",
]  # fmt: skip
_LOGIN: Final = "there is nobody to log in to: who may read the files may read the topics"
_CLUSTERS: Final = "there are no clusters: give Client the root's service_url"
_ENCRYPTION: Final = "messages are not encrypted: encrypt the disk or the bucket"
_FUNCTIONS: Final = "Pulsar Functions are not here: use Spark"

HASHES: Final = 1 << 16
"""The hashes of keys, from 0 on, that consumers of a Key_Shared subscription share."""


def check_type(kind: type, /, **given: object) -> None:
    """ValueError, as Pulsar's client has it, names an argument that is not of that type."""
    for name, value in given.items():
        if not isinstance(value, kind):
            raise ValueError(  # noqa: TRY004 - as Pulsar's
                f"Argument {name} is expected to be of type {kind.__name__!r} and not "
                f"{type(value).__name__!r}"
            )


def check_type_or_none(kind: type, /, **given: object) -> None:
    for name, value in given.items():
        if value is not None and not isinstance(value, kind):
            raise ValueError(
                f"Argument {name} is expected to be either None or of type {kind.__name__!r}"
            )


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
        if not max_redeliver_count or max_redeliver_count < 1:
            raise ValueError("max_redeliver_count must be greater than 0")
        for name in (dead_letter_topic, initial_subscription_name):
            if name is not None and not isinstance(name, str):
                raise TypeError(f"{name!r} is no name of a topic or a subscription.")
        self.max_redeliver_count = max_redeliver_count
        self.dead_letter_topic = dead_letter_topic or ""
        self.initial_subscription_name = initial_subscription_name or ""


class ConsumerKeySharedPolicy:
    """The way in which a Key_Shared subscription deals out its keys."""

    def __init__(
        self,
        key_shared_mode: KeySharedMode = KeySharedMode.AutoSplit,
        allow_out_of_order_delivery: bool = False,
        sticky_ranges: list[tuple[int, int]] | None = None,
    ) -> None:
        """`sticky_ranges`: hash ranges from 0 to 65,535, both ends included."""
        if not isinstance(key_shared_mode, KeySharedMode):
            raise TypeError(f"{key_shared_mode!r} is no KeySharedMode.")
        if key_shared_mode is KeySharedMode.Sticky and sticky_ranges is None:
            raise ValueError(
                "When using key_shared_mode = KeySharedMode.Sticky you must also provide "
                "sticky_ranges"
            )
        if sticky_ranges is not None:
            _check_ranges(sticky_ranges)
        self.key_shared_mode = key_shared_mode
        self.allow_out_of_order_delivery = allow_out_of_order_delivery
        self.sticky_ranges = sticky_ranges or []


def _check_ranges(given: Sequence[Any]) -> None:
    """TypeError or ValueError names what is wrong with sticky ranges."""
    for each in given:
        if not (isinstance(each, Sequence) and [type(end) for end in each] == [int, int]):
            raise TypeError(f"{each!r} is no range: give (first, last).")
    if not given:
        raise ValueError("Ranges for KeyShared policy must not be empty.")
    for first, last in given:
        if not 0 <= first <= last <= HASHES - 1:
            raise ValueError("KeySharedPolicy Exception: Ranges must be [0, 65535].")
    ordered = sorted(given)
    if any(last >= following for (_, last), (following, _) in pairwise(ordered)):
        raise ValueError("Ranges for KeyShared policy with overlap.")


class ConsumerBatchReceivePolicy:
    """When `batch_receive` has enough: the first bound reached ends it; -1 is no bound."""

    def __init__(self, max_num_message: int, max_num_bytes: int, timeout_ms: int) -> None:
        for bound in (max_num_message, max_num_bytes, timeout_ms):
            if not isinstance(bound, int):
                raise TypeError(f"A bound is {bound!r}: it takes a whole number, -1 for none.")
        if max_num_message <= 0 and max_num_bytes <= 0 and timeout_ms <= 0:
            raise ValueError(
                "At least one of maxNumMessages, maxNumBytes and timeoutMs must be specified."
            )
        self.max_num_message = max_num_message
        self.max_num_bytes = max_num_bytes
        self.timeout_ms = timeout_ms


DEFAULT_BATCH_RECEIVE = ConsumerBatchReceivePolicy(-1, 10 << 20, 100)


class Absent:
    """A class that can be imported and derived from, and of which nothing is made."""

    why: ClassVar[str] = "it is not here"

    def __init__(self, *args: Any, **kwargs: Any) -> NoReturn:
        del args, kwargs
        name = next(each.__name__ for each in type(self).__mro__ if each.__module__ == __name__)
        raise OperationNotSupported(f"pulsar.{name} can't be used: {self.why}.")


def absent(name: str, why: str) -> type[Absent]:
    """A class of that name."""
    return type(name, (Absent,), {"why": why, "__module__": __name__})


class Authentication(Absent):
    why = _LOGIN


class AuthenticationAthenz(Authentication):
    pass


class AuthenticationBasic(Authentication):
    pass


class AuthenticationOauth2(Authentication):
    pass


class AuthenticationTLS(Authentication):
    pass


class AuthenticationToken(Authentication):
    pass


class AutoClusterFailover(Absent):
    why = _CLUSTERS


class ServiceInfo(Absent):
    why = _CLUSTERS


class ServiceInfoProvider(Absent):
    why = _CLUSTERS


class CryptoKeyReader(Absent):
    why = _ENCRYPTION


class EncryptionContext(Absent):
    why = _ENCRYPTION


class EncryptionKey(Absent):
    why = _ENCRYPTION


class BatchReceivePolicy(Absent):
    why = "take ConsumerBatchReceivePolicy"


class KeySharedPolicy(Absent):
    why = "take ConsumerKeySharedPolicy"


class DeadLetterPolicyBuilder(Absent):
    why = "take ConsumerDeadLetterPolicy"


class MessageBatch(Absent):
    why = "it reads entries of Pulsar's wire protocol"


class Context(Absent):
    why = _FUNCTIONS


class Function(Absent):
    why = _FUNCTIONS


class SerDe(Absent):
    why = _FUNCTIONS


class IdentitySerDe(SerDe):
    pass


class PickleSerDe(SerDe):
    pass
