"""The errors, as one tree.

Invariants: each class has a stable `condition` that a program can match on: its name, `DATA_LOSS`
for `DataLossError`; every message says what happened and what to do; and every error pickles (it
crosses from a worker to the driver). `docs/errors.md` is the table of them.
"""

from __future__ import annotations

import re
from enum import Enum
from typing import ClassVar, Final


class ServerError(str, Enum):
    """Why a request was refused: names of Pulsar's wire protocol, where it has one."""

    METADATA_ERROR = "MetadataError"
    CONSUMER_BUSY = "ConsumerBusy"
    CONSUMER_ASSIGN_ERROR = "ConsumerAssignError"
    CONSUMER_NOT_FOUND = "ConsumerNotFound"
    TOPIC_NOT_FOUND = "TopicNotFound"
    CONSUMER_REPLACED = "ConsumerReplaced"
    SUBSCRIPTION_NOT_FOUND = "SubscriptionNotFound"
    NOT_ALLOWED_ERROR = "NotAllowedError"
    NAMING_ERROR = "NamingError"
    INVALID_CURSOR_POSITION = "InvalidCursorPosition"
    EPOCH_IS_OVER = "EpochIsOver"
    PRODUCER_BUSY = "ProducerBusy"
    PRODUCER_FENCED = "ProducerFenced"
    PRODUCER_BLOCKED_QUOTA_EXCEEDED_ERROR = "ProducerBlockedQuotaExceededError"
    PRODUCER_BLOCKED_QUOTA_EXCEEDED_EXCEPTION = "ProducerBlockedQuotaExceededException"


class PulsarliteError(Exception):
    """Root of all errors that Pulsarlite raises on purpose."""

    condition: ClassVar[str] = "PULSARLITE"

    def __init_subclass__(cls) -> None:
        words = re.findall("[A-Z][a-z]+", cls.__name__.removesuffix("Error"))
        cls.condition = "_".join(words).upper()

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message

    def __str__(self) -> str:
        return f"[{self.condition}] {self.message}"


class InvalidOptionError(PulsarliteError, ValueError):
    """An option is unknown, missing, or has a value that can't be used."""


class InvalidTopicNameError(PulsarliteError, ValueError):
    """A topic, namespace or subscription name is malformed (Pulsar's NamingException)."""


class InvalidMessageError(PulsarliteError, ValueError):
    """A row can't become a message (Pulsar's InvalidMessageException)."""


class MessageTooBigError(InvalidMessageError):
    """A message is larger than `maxMessageSize`, and not to be cut into chunks."""


class DeliveryDelayTooLongError(InvalidMessageError):
    """A message is to come later than its topic allows (Pulsar's NotAllowedException)."""


class InvalidSchemaDataError(PulsarliteError, ValueError):
    """A schema's definition is no Avro schema, or not one for its type (InvalidSchemaData)."""


class IncompatibleSchemaError(PulsarliteError, ValueError):
    """A schema may not follow those of its topic (Pulsar's IncompatibleSchemaException)."""


class SchemaMismatchError(PulsarliteError, ValueError):
    """A stored value does not fit its topic's schema (Pulsar's SchemaSerializationException)."""


class InvalidCursorPositionError(PulsarliteError, ValueError):
    """A position to acknowledge is consumed already, or lies beyond the last entry."""


class TopicNotFoundError(PulsarliteError):
    """Nothing stands at that topic name."""


class TopicDeletedError(TopicNotFoundError):
    """A topic was deleted; one that was made again under its name is another."""


class TopicReplacedError(PulsarliteError):
    """A topic's folder was removed or replaced by hand, and its subscriptions know the old one."""


class TopicTerminatedError(PulsarliteError):
    """A topic takes no messages any more (Pulsar's TopicTerminatedException)."""


class MessageNotFoundError(PulsarliteError):
    """A topic has no such message, or not any more."""


class TopicInUseError(PulsarliteError):
    """A topic, namespace or tenant is to be deleted, and somebody uses it still."""


class NamespaceNotFoundError(PulsarliteError):
    """There is no namespace, or no tenant, of that name."""


class TopicExistsError(PulsarliteError):
    """A topic, namespace or tenant is to be created that exists already."""


class TooManyTopicsError(PulsarliteError):
    """A namespace has as many topics, each partition counted, as its policies let it have."""


class CorruptFileError(PulsarliteError):
    """A stored file is truncated, damaged, or not one of ours."""


class UnreadableRecordError(PulsarliteError, ValueError):
    """A record was about to be stored that nobody could have read again: nothing was stored."""


class FutureVersionError(PulsarliteError):
    """A stored file was written by a newer version of Pulsarlite."""


class ConsumerAssignError(PulsarliteError):
    """A Key_Shared consumer can't get slots (Pulsar's ConsumerAssignException)."""


class ConsumerBusyError(PulsarliteError):
    """The subscription has a consumer that excludes this one (ConsumerBusyException)."""


class ConsumerReplacedError(PulsarliteError):
    """A newer run has the consumer's name, and this one must stop."""


class BrokerAbsentError(PulsarliteError):
    """No broker answered in time: none runs for that root, or it is very busy."""


class ConsumerNotConnectedError(PulsarliteError):
    """A consumer is to leave that is not there (ServerMetadataException)."""


class ProducerBusyError(PulsarliteError):
    """The topic's producers exclude this one for now (ProducerBusyException)."""


class ProducerFencedError(PulsarliteError):
    """Another producer owns the topic, and this one must stop (ProducerFencedException)."""


class ProducerBlockedQuotaExceededError(PulsarliteError):
    """A topic's backlog quota is exceeded (Pulsar's ProducerBlockedQuotaExceededException)."""


class ProducerHeldError(ProducerBlockedQuotaExceededError):
    """A topic's backlog quota is exceeded, and its policy is to wait: there may be room later.

    Pulsar's ProducerBlockedQuotaExceededError.
    """


class InvalidTxnStatusError(PulsarliteError):
    """A transaction was aborted before it could be committed (InvalidTxnStatusException)."""


class TransactionConflictError(PulsarliteError):
    """A transaction acknowledges what is acknowledged already (TransactionConflictException)."""


class DataLossError(PulsarliteError):
    """An offset names messages that were trimmed away."""


class VerificationError(PulsarliteError):
    """The stored messages differ from the published ones, as `pulsarlite topics verify` found."""


class FencedError(PulsarliteError):
    """A newer owner has taken over, and this writer must stop."""


class BrokerFencedError(FencedError):
    """Another broker has taken over the root, and this one must stop."""


class StaleCheckpointError(PulsarliteError):
    """The broker of that root has run from another checkpoint since this one was written."""


class BrokerBusyError(PulsarliteError):
    """A broker serves the root already, and lives."""


class SparkNotReadyError(PulsarliteError):
    """Spark lacks something that a broker needs: a setting, a package, a writable folder."""


class FileReclaimedError(PulsarliteError):
    """A commit came so late that its data file had been given up as an orphan."""


class StorageError(PulsarliteError):
    """The folder or the object store refused an operation."""


class UnreadableFileError(StorageError):
    """A stored file can't be read: its rights are missing, or the disk fails."""


class ObjectNotFoundError(StorageError, FileNotFoundError):
    """A stored file is not there, or not there any more: refresh the log and read again.

    What a reader with an older view of the log meets when the file was merged or trimmed.
    """


class StorageRefusedError(StorageError):
    """The object store refuses what was asked, and will until something is set otherwise."""


class BucketNotFoundError(StorageRefusedError):
    """The bucket, or container, of the serviceUrl is not there."""


class StorageCredentialsError(StorageRefusedError):
    """There are no credentials for the object store, or it does not take them."""


class StorageAccessDeniedError(StorageRefusedError):
    """The credentials for the object store may not do what was asked."""


class StorageSettingsError(StorageRefusedError):
    """A setting of the object store is wrong: its endpoint, its region, http, or the clock."""


class ConditionalWriteError(StorageRefusedError):
    """The object store ignores the condition of a write: commits would overwrite each other."""


class StorageUnavailableError(StorageError):
    """The object store did not answer, or kept refusing for now; what was asked may have happened.

    Nothing stored is damaged by it. Whoever tries again finds out what became of it.
    """


class JavaNotFoundError(PulsarliteError):
    """There is no Java that Spark can run on."""


class ShellNotFoundError(PulsarliteError):
    """Spark's own start scripts can't run, for want of a shell."""


class MissingPackageError(PulsarliteError, ImportError):
    """A package is not installed that one of Pulsarlite's extras would bring."""


class BrokerRefusedError(PulsarliteError):
    """The broker refused a request; `error` says why, in Pulsar's word (a `ServerError`)."""

    def __init__(self, error: ServerError, message: str) -> None:
        super().__init__(message)
        self.error = error

    def __reduce__(self) -> tuple[type[BrokerRefusedError], tuple[ServerError, str]]:
        return BrokerRefusedError, (self.error, self.message)


def replaced(topic: str) -> TopicReplacedError:
    """The error that a broker met another log than the one of which it knows."""
    return TopicReplacedError(
        f"Topic {topic} is not the one that its subscriptions know: its folder was removed or "
        "replaced by hand. Nothing of it is dispatched, as its first messages would be taken for "
        "acknowledged. Bring the folder back from a copy, or publish under another name; to end a "
        "topic, use pulsarlite topics delete."
    )


DAMAGE: Final = (CorruptFileError, FutureVersionError, UnreadableFileError)
"""The errors that keep one topic from being read: a process that reads several goes on."""
