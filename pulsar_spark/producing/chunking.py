"""Into how many chunks a large payload is cut, how large each is, and how they are named.

Invariants: the chunks' sizes add up to the payload's; each but the last is full; an empty payload
is one empty chunk. Follows the arithmetic of Pulsar's `ProducerImpl`, on sizes after compression.
"""

from __future__ import annotations

from dataclasses import dataclass

from pulsar_spark.errors import InvalidMessageError


@dataclass(frozen=True, slots=True)
class Chunks:
    """How one payload is cut."""

    payload_bytes: int
    payload_chunk_size: int

    @staticmethod
    def of(
        payload_bytes: int,
        metadata_bytes: int,
        max_message_size: int,
        chunk_max_message_size: int = -1,
    ) -> Chunks:
        """Cut a payload so that each chunk fits into a message beside its metadata.

        `chunk_max_message_size` limits a chunk's payload further; at or below 0 it does not.
        InvalidMessageError if the metadata alone leaves no room.
        """
        room = max_message_size - metadata_bytes
        if room <= 0:
            raise InvalidMessageError("metadata exceeds max message size")
        limit = chunk_max_message_size if chunk_max_message_size > 0 else max_message_size
        return Chunks(payload_bytes, min(limit, room))

    @property
    def count(self) -> int:
        return -(-max(1, self.payload_bytes) // self.payload_chunk_size)

    @property
    def sizes(self) -> list[int]:
        """The payload bytes of each chunk."""
        full = self.count - 1
        return [self.payload_chunk_size] * full + [
            self.payload_bytes - full * self.payload_chunk_size
        ]

    def uuid(self, producer_name: str, sequence_id: int) -> str | None:
        """What all chunks of the message share; None if it is not cut."""
        return f"{producer_name}-{sequence_id}" if self.count > 1 else None

    def slice(self, chunk_id: int) -> slice:
        """Where a chunk lies in the payload. IndexError if there is no such chunk."""
        if not 0 <= chunk_id < self.count:
            raise IndexError(f"there is no chunk {chunk_id} of {self.count}")
        start = chunk_id * self.payload_chunk_size
        return slice(start, min(start + self.payload_chunk_size, self.payload_bytes))
