"""What can go wrong, as one tree.

Invariants: each class has a stable `condition` that a program can match on, every message says
what happened and what to do, and every error pickles (it crosses from a worker to the driver).

    PulsarliteError
    ├── InvalidOptionError            an option is unknown, missing or has a bad value
    ├── InvalidTopicNameError         a topic, namespace or subscription name is malformed
    ├── InvalidMessageError           a row can't become a message (column type, size)
    ├── InvalidSchemaDataError        a schema's definition is none, or not one for its type
    ├── IncompatibleSchemaError       a schema may not follow those of its topic
    ├── SchemaMismatchError           a stored value does not fit its topic's schema
    ├── InvalidCursorPositionError    what is to be acknowledged is consumed already, or not there
    ├── TopicNotFoundError            nothing stands at that name
    ├── TopicExistsError              a topic is to be created that is there already
    ├── CorruptFileError              a stored file is truncated, damaged or not ours
    ├── UnreadableRecordError         what was to be stored could not have been read again
    ├── FutureVersionError            a stored file is from a newer version of Pulsarlite
    ├── ConsumerAssignError           a Key_Shared consumer can't get the slots that it needs
    ├── ConsumerBusyError             the subscription has a consumer that excludes this one
    ├── ConsumerReplacedError         a newer run has the consumer's name; this one must stop
    ├── BrokerAbsentError             no broker answered in time
    ├── ConsumerNotConnectedError     a consumer is to leave that is not there
    ├── ProducerBusyError             the topic's producers exclude this one for now
    ├── ProducerFencedError           another producer owns the topic, and this one must stop
    ├── InvalidTxnStatusError         a transaction was aborted before it could be committed
    ├── DataLossError                 an offset names messages that were trimmed away
    ├── FencedError                   a newer owner has taken over; this writer must stop
    │   └── BrokerFencedError         another broker has taken over the root; this one must stop
    ├── StaleCheckpointError          the checkpoint is not the newest of its broker
    ├── BrokerBusyError               a broker serves the root already
    ├── SparkNotReadyError            Spark lacks something that a broker needs
    ├── FileReclaimedError            a commit came so late that its file was given up
    ├── StorageError                  the folder or the object store refused
    │   ├── ObjectNotFoundError       a stored file is not there, or not there any more
    │   ├── BucketNotFoundError       the bucket of the serviceUrl is not there
    │   └── StorageUnavailableError   the object store did not answer, however often it was asked
    ├── JavaNotFoundError             no Java that Spark can run on
    ├── ShellNotFoundError            Spark's own start scripts can't run
    ├── MissingPackageError           a package is not installed that an extra would bring
    └── BrokerRefusedError            the broker refused a request, with Pulsar's word for why
"""

from __future__ import annotations

from enum import Enum
from typing import ClassVar


class ServerError(str, Enum):
    """Why a request was refused: names of Pulsar's wire protocol, where it has one."""

    CONSUMER_BUSY = "ConsumerBusy"
    CONSUMER_ASSIGN_ERROR = "ConsumerAssignError"
    CONSUMER_NOT_FOUND = "ConsumerNotFound"
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

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message

    def __str__(self) -> str:
        return f"[{self.condition}] {self.message}"


class InvalidOptionError(PulsarliteError, ValueError):
    """An option is unknown, missing, or has a value that can't be used."""

    condition = "INVALID_OPTION"


class InvalidTopicNameError(PulsarliteError, ValueError):
    """A topic, namespace or subscription name is malformed (Pulsar's NamingException)."""

    condition = "INVALID_TOPIC_NAME"


class InvalidMessageError(PulsarliteError, ValueError):
    """A row can't become a message (Pulsar's InvalidMessageException)."""

    condition = "INVALID_MESSAGE"


class InvalidSchemaDataError(PulsarliteError, ValueError):
    """A schema's definition is no Avro schema, or not one for its type (InvalidSchemaData)."""

    condition = "INVALID_SCHEMA_DATA"


class IncompatibleSchemaError(PulsarliteError, ValueError):
    """A schema may not follow those of its topic (Pulsar's IncompatibleSchemaException)."""

    condition = "INCOMPATIBLE_SCHEMA"


class SchemaMismatchError(PulsarliteError, ValueError):
    """A stored value does not fit its topic's schema (Pulsar's SchemaSerializationException)."""

    condition = "SCHEMA_MISMATCH"


class InvalidCursorPositionError(PulsarliteError, ValueError):
    """A position to acknowledge is consumed already, or lies beyond the last entry."""

    condition = "INVALID_CURSOR_POSITION"


class TopicNotFoundError(PulsarliteError):
    """Nothing stands at that topic name."""

    condition = "TOPIC_NOT_FOUND"


class TopicExistsError(PulsarliteError):
    """A topic is to be created that exists already."""

    condition = "TOPIC_EXISTS"


class CorruptFileError(PulsarliteError):
    """A stored file is truncated, damaged, or not one of ours."""

    condition = "CORRUPT_FILE"


class UnreadableRecordError(PulsarliteError, ValueError):
    """A record was about to be stored that nobody could have read again: nothing was stored."""

    condition = "UNREADABLE_RECORD"


class FutureVersionError(PulsarliteError):
    """A stored file was written by a newer version of Pulsarlite."""

    condition = "FUTURE_VERSION"


class ConsumerAssignError(PulsarliteError):
    """A Key_Shared consumer can't get slots (Pulsar's ConsumerAssignException)."""

    condition = "CONSUMER_ASSIGN"


class ConsumerBusyError(PulsarliteError):
    """The subscription has a consumer that excludes this one (ConsumerBusyException)."""

    condition = "CONSUMER_BUSY"


class ConsumerReplacedError(PulsarliteError):
    """A newer run has the consumer's name, and this one must stop."""

    condition = "CONSUMER_REPLACED"


class BrokerAbsentError(PulsarliteError):
    """No broker answered in time: none runs for that root, or it is very busy."""

    condition = "BROKER_ABSENT"


class ConsumerNotConnectedError(PulsarliteError):
    """A consumer is to leave that is not there (ServerMetadataException)."""

    condition = "CONSUMER_NOT_CONNECTED"


class ProducerBusyError(PulsarliteError):
    """The topic's producers exclude this one for now (ProducerBusyException)."""

    condition = "PRODUCER_BUSY"


class ProducerFencedError(PulsarliteError):
    """Another producer owns the topic, and this one must stop (ProducerFencedException)."""

    condition = "PRODUCER_FENCED"


class InvalidTxnStatusError(PulsarliteError):
    """A transaction was aborted before it could be committed (InvalidTxnStatusException)."""

    condition = "INVALID_TXN_STATUS"


class DataLossError(PulsarliteError):
    """An offset names messages that were trimmed away."""

    condition = "DATA_LOSS"


class FencedError(PulsarliteError):
    """A newer owner has taken over, and this writer must stop."""

    condition = "FENCED"


class BrokerFencedError(FencedError):
    """Another broker has taken over the root, and this one must stop."""

    condition = "BROKER_FENCED"


class StaleCheckpointError(PulsarliteError):
    """The broker of that root has run from another checkpoint since this one was written."""

    condition = "STALE_CHECKPOINT"


class BrokerBusyError(PulsarliteError):
    """A broker serves the root already, and lives."""

    condition = "BROKER_BUSY"


class SparkNotReadyError(PulsarliteError):
    """Spark lacks something that a broker needs: a setting, a package, a writable folder."""

    condition = "SPARK_NOT_READY"


class FileReclaimedError(PulsarliteError):
    """A commit came so late that its data file had been given up as an orphan."""

    condition = "FILE_RECLAIMED"


class StorageError(PulsarliteError):
    """The folder or the object store refused an operation."""

    condition = "STORAGE"


class ObjectNotFoundError(StorageError, FileNotFoundError):
    """A stored file is not there, or not there any more: refresh the log and read again.

    What a reader with an older view of the log meets when the file was merged or trimmed.
    """

    condition = "OBJECT_NOT_FOUND"


class BucketNotFoundError(StorageError):
    """The bucket, or container, of the serviceUrl is not there."""

    condition = "BUCKET_NOT_FOUND"


class StorageUnavailableError(StorageError):
    """The object store did not answer, or kept refusing for now; what was asked may have happened.

    Nothing stored is damaged by it. Whoever tries again finds out what became of it.
    """

    condition = "STORAGE_UNAVAILABLE"


class JavaNotFoundError(PulsarliteError):
    """There is no Java that Spark can run on."""

    condition = "JAVA_NOT_FOUND"


class ShellNotFoundError(PulsarliteError):
    """Spark's own start scripts can't run, for want of a shell."""

    condition = "SHELL_NOT_FOUND"


class MissingPackageError(PulsarliteError, ImportError):
    """A package is not installed that one of Pulsarlite's extras would bring."""

    condition = "MISSING_PACKAGE"


class BrokerRefusedError(PulsarliteError):
    """The broker refused a request; `error` says why, in Pulsar's word (a `ServerError`)."""

    condition = "BROKER_REFUSED"

    def __init__(self, error: ServerError, message: str) -> None:
        super().__init__(message)
        self.error = error

    def __reduce__(self) -> tuple[type[BrokerRefusedError], tuple[ServerError, str]]:
        return BrokerRefusedError, (self.error, self.message)
