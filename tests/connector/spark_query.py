"""A streaming query on real Spark that keeps what each micro-batch had."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.waiting import eventually

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


def killed_at_its_first_offset(checkpoint: Path) -> None:
    """What Spark leaves of a query that was killed before it had renamed that file."""
    for log in ("offsets", "commits", "state"):
        (checkpoint / log).mkdir(parents=True)
    (checkpoint / "offsets" / ".0.0b5c3d1e-7a52-4c6e-9c39-3d0f1f1d2a11.tmp").write_text("v1\n{")


@dataclass
class SparkQuery:
    """`run` reads what is there and ends; `start` goes on until `stop`."""

    spark: SparkSession
    root: Path | str
    checkpoint: Path
    schema: str | None
    given: dict[str, object]
    batches: dict[int, list[Row]] = field(default_factory=dict)
    fails_at: int = -1
    """The micro-batch that fails when its rows were seen: it is not committed."""

    def frame(self) -> DataFrame:
        reader = self.spark.readStream.format("pulsarlite")
        for name, value in {"serviceUrl": self.root, **self.given}.items():
            reader = reader.option(name, str(value))
        return (reader if self.schema is None else reader.schema(self.schema)).load()

    def start(self, **trigger: Any) -> StreamingQuery:
        writer = self.frame().writeStream.foreachBatch(self._keep)
        writer = writer.option("checkpointLocation", str(self.checkpoint))
        return writer.trigger(**(trigger or {"processingTime": "0 seconds"})).start()

    def run(self) -> list[list[Row]]:
        """What is there now, by micro-batch, in order; empty micro-batches are left out."""
        known = set(self.batches)
        running = self.start(availableNow=True)
        try:
            assert running.awaitTermination(120), "the query did not end"
        finally:
            running.stop()
        return [
            rows for number, rows in sorted(self.batches.items()) if number not in known and rows
        ]

    def values(self) -> list[str]:
        """What `run` finds, as text."""
        return [row.value.decode() for rows in self.run() for row in rows]

    def wait_for(self, values: set[str], deadline_s: float = 120) -> None:
        """Until the query that runs has seen exactly these, each once."""

        def seen() -> bool:
            found = [row.value.decode() for rows in self.batches.values() for row in rows]
            return sorted(found) == sorted(values)

        eventually(seen, deadline_s, f"the query sees {len(values)} values")

    def offsets(self) -> list[dict[str, Any]]:
        """The source's offset of each micro-batch, as Spark has logged it."""
        log = self.checkpoint / "offsets"
        names = sorted((path.name for path in log.iterdir() if path.name.isdecimal()), key=int)
        return [json.loads((log / name).read_text().split("\n")[2]) for name in names]

    def _keep(self, batch: DataFrame, number: int) -> None:
        self.batches[number] = batch.collect()
        if number == self.fails_at:
            raise RuntimeError(f"micro-batch {number} fails, as it was told to")
