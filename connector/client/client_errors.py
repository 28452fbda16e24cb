"""The errors of the client, by the names and numbers that Pulsar's Python client gives them.

Invariants: what goes wrong in a call of the client is a PulsarException of the nearest name, with
Pulsarlite's own error as its cause, and that error's text, which says what to do. Follows
`pulsar.exceptions` and `pulsar.Result` of Pulsar's Python client 3.13.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Final

from pulsar_spark import errors

__all__ = [
    "AlreadyClosed", "AuthenticationError", "AuthorizationError", "BrokerMetadataError",
    "BrokerPersistenceError", "ChecksumError", "ConnectError", "ConsumerAssignError",
    "ConsumerBusy", "ConsumerNotFound", "ConsumerNotInitialized", "CryptoError",
    "CumulativeAcknowledgementNotAllowedError", "ErrorGettingAuthenticationData",
    "IncompatibleSchema", "Interrupted", "InvalidConfiguration", "InvalidMessage",
    "InvalidTopicName", "InvalidTxnStatusError", "InvalidUrl", "LookupError", "MemoryBufferIsFull",
    "MessageTooBig", "NotAllowedError", "NotConnected", "OperationNotSupported",
    "ProducerBlockedQuotaExceededError", "ProducerBlockedQuotaExceededException", "ProducerBusy",
    "ProducerFenced", "ProducerNotInitialized", "ProducerQueueIsFull", "PulsarException",
    "ReadError", "Result", "ServiceUnitNotReady", "SubscriptionNotFound", "Timeout",
    "TooManyLookupRequestException", "TopicNotFound", "TopicTerminated", "TransactionConflict",
    "TransactionCoordinatorNotFoundError", "TransactionNotFound", "UnknownError",
    "UnsupportedVersionError",
]  # fmt: skip


class Result(Enum):
    """The outcome of a call of the client."""

    Ok = 0
    UnknownError = 1
    InvalidConfiguration = 2
    Timeout = 3
    LookupError = 4
    ConnectError = 5
    ReadError = 6
    AuthenticationError = 7
    AuthorizationError = 8
    ErrorGettingAuthenticationData = 9
    BrokerMetadataError = 10
    BrokerPersistenceError = 11
    ChecksumError = 12
    ConsumerBusy = 13
    NotConnected = 14
    AlreadyClosed = 15
    InvalidMessage = 16
    ConsumerNotInitialized = 17
    ProducerNotInitialized = 18
    ProducerBusy = 19
    TooManyLookupRequestException = 20
    InvalidTopicName = 21
    InvalidUrl = 22
    ServiceUnitNotReady = 23
    OperationNotSupported = 24
    ProducerBlockedQuotaExceededError = 25
    ProducerBlockedQuotaExceededException = 26
    ProducerQueueIsFull = 27
    MessageTooBig = 28
    TopicNotFound = 29
    SubscriptionNotFound = 30
    ConsumerNotFound = 31
    UnsupportedVersionError = 32
    TopicTerminated = 33
    CryptoError = 34
    IncompatibleSchema = 35
    ConsumerAssignError = 36
    CumulativeAcknowledgementNotAllowedError = 37
    TransactionCoordinatorNotFoundError = 38
    InvalidTxnStatusError = 39
    NotAllowedError = 40
    TransactionConflict = 41
    TransactionNotFound = 42
    ProducerFenced = 43
    MemoryBufferIsFull = 44
    Interrupted = 45


class PulsarException(Exception):  # noqa: N818 - Pulsar's name
    """The error of a call of the client; `result` has its number."""

    result = Result.UnknownError

    def error(self) -> Result:
        return self.result


def _of(result: Result) -> type[PulsarException]:
    return type(result.name, (PulsarException,), {"result": result, "__module__": __name__})


UnknownError: Final = _of(Result.UnknownError)
InvalidConfiguration: Final = _of(Result.InvalidConfiguration)
Timeout: Final = _of(Result.Timeout)
LookupError: Final = _of(Result.LookupError)  # noqa: A001 - Pulsar's name
ConnectError: Final = _of(Result.ConnectError)
ReadError: Final = _of(Result.ReadError)
AuthenticationError: Final = _of(Result.AuthenticationError)
AuthorizationError: Final = _of(Result.AuthorizationError)
ErrorGettingAuthenticationData: Final = _of(Result.ErrorGettingAuthenticationData)
BrokerMetadataError: Final = _of(Result.BrokerMetadataError)
BrokerPersistenceError: Final = _of(Result.BrokerPersistenceError)
ChecksumError: Final = _of(Result.ChecksumError)
ConsumerBusy: Final = _of(Result.ConsumerBusy)
NotConnected: Final = _of(Result.NotConnected)
AlreadyClosed: Final = _of(Result.AlreadyClosed)
InvalidMessage: Final = _of(Result.InvalidMessage)
ConsumerNotInitialized: Final = _of(Result.ConsumerNotInitialized)
ProducerNotInitialized: Final = _of(Result.ProducerNotInitialized)
ProducerBusy: Final = _of(Result.ProducerBusy)
TooManyLookupRequestException: Final = _of(Result.TooManyLookupRequestException)
InvalidTopicName: Final = _of(Result.InvalidTopicName)
InvalidUrl: Final = _of(Result.InvalidUrl)
ServiceUnitNotReady: Final = _of(Result.ServiceUnitNotReady)
OperationNotSupported: Final = _of(Result.OperationNotSupported)
ProducerBlockedQuotaExceededError: Final = _of(Result.ProducerBlockedQuotaExceededError)
ProducerBlockedQuotaExceededException: Final = _of(Result.ProducerBlockedQuotaExceededException)
ProducerQueueIsFull: Final = _of(Result.ProducerQueueIsFull)
MessageTooBig: Final = _of(Result.MessageTooBig)
TopicNotFound: Final = _of(Result.TopicNotFound)
SubscriptionNotFound: Final = _of(Result.SubscriptionNotFound)
ConsumerNotFound: Final = _of(Result.ConsumerNotFound)
UnsupportedVersionError: Final = _of(Result.UnsupportedVersionError)
TopicTerminated: Final = _of(Result.TopicTerminated)
CryptoError: Final = _of(Result.CryptoError)
IncompatibleSchema: Final = _of(Result.IncompatibleSchema)
ConsumerAssignError: Final = _of(Result.ConsumerAssignError)
CumulativeAcknowledgementNotAllowedError: Final = _of(
    Result.CumulativeAcknowledgementNotAllowedError
)
TransactionCoordinatorNotFoundError: Final = _of(Result.TransactionCoordinatorNotFoundError)
InvalidTxnStatusError: Final = _of(Result.InvalidTxnStatusError)
NotAllowedError: Final = _of(Result.NotAllowedError)
TransactionConflict: Final = _of(Result.TransactionConflict)
TransactionNotFound: Final = _of(Result.TransactionNotFound)
ProducerFenced: Final = _of(Result.ProducerFenced)
MemoryBufferIsFull: Final = _of(Result.MemoryBufferIsFull)
Interrupted: Final = _of(Result.Interrupted)

_BY_ERROR: Final[tuple[tuple[type[Exception], type[PulsarException]], ...]] = (
    (errors.InvalidTopicNameError, InvalidTopicName),
    (errors.InvalidOptionError, InvalidConfiguration),
    (errors.MessageTooBigError, MessageTooBig),
    (errors.DeliveryDelayTooLongError, NotAllowedError),
    (errors.InvalidMessageError, InvalidMessage),
    (errors.IncompatibleSchemaError, IncompatibleSchema),
    (errors.InvalidSchemaDataError, IncompatibleSchema),
    (errors.SchemaMismatchError, IncompatibleSchema),
    (errors.TopicNotFoundError, TopicNotFound),
    (errors.TooManyTopicsError, NotAllowedError),
    (errors.TopicTerminatedError, TopicTerminated),
    (errors.CorruptFileError, ChecksumError),
    (errors.UnreadableRecordError, ChecksumError),
    (errors.FutureVersionError, UnsupportedVersionError),
    (errors.ConsumerAssignError, ConsumerAssignError),
    (errors.ConsumerBusyError, ConsumerBusy),
    (errors.ConsumerReplacedError, NotConnected),
    (errors.ConsumerNotConnectedError, AlreadyClosed),
    (errors.BrokerAbsentError, ServiceUnitNotReady),
    (errors.BrokerBusyError, ServiceUnitNotReady),
    (errors.FencedError, ServiceUnitNotReady),
    (errors.InvalidCursorPositionError, InvalidMessage),
    (errors.ProducerHeldError, ProducerBlockedQuotaExceededError),
    (errors.ProducerBlockedQuotaExceededError, ProducerBlockedQuotaExceededException),
    (errors.ProducerBusyError, ProducerBusy),
    (errors.ProducerFencedError, ProducerFenced),
    (errors.InvalidTxnStatusError, InvalidTxnStatusError),
    (errors.TransactionConflictError, TransactionConflict),
    (errors.DataLossError, ReadError),
    (errors.StorageUnavailableError, ConnectError),
    (errors.StorageCredentialsError, AuthenticationError),
    (errors.StorageAccessDeniedError, AuthorizationError),
    (errors.StorageSettingsError, InvalidConfiguration),
    (errors.ConditionalWriteError, OperationNotSupported),
    (errors.StorageError, ReadError),
)
"""Pulsarlite's error -> the client's; the first that fits."""

_BY_NAME: Final = {
    **{kind.__name__: kind for kind in PulsarException.__subclasses__()},
    errors.ServerError.METADATA_ERROR.value: BrokerMetadataError,
}


def exception_of(error: Exception) -> PulsarException:
    """The client's exception for an error of Pulsarlite's."""
    if isinstance(error, PulsarException):
        return error
    if isinstance(error, errors.BrokerRefusedError):
        return _BY_NAME.get(error.error.value, NotAllowedError)(str(error))
    for kind, named in _BY_ERROR:
        if isinstance(error, kind):
            return named(str(error))
    return UnknownError(str(error))


def is_open(check: Callable[[], None]) -> bool:
    """True if that check, which raises AlreadyClosed, passes."""
    try:
        check()
    except PulsarException:
        return False
    return True


def may_pass(error: PulsarException) -> bool:
    """True if another attempt may go well: the store did not answer, or not as it should."""
    return isinstance(error.__cause__, (errors.StorageError, OSError))


class _Translated:
    """Has no state, and so costs a message next to nothing."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, errors.PulsarliteError):
            raise exception_of(error) from error


_TRANSLATED: Final = _Translated()


def translated() -> _Translated:
    """A context whose PulsarliteErrors come out as PulsarExceptions."""
    return _TRANSLATED
