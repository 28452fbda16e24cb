"""Writes the golden checkpoint `tests/golden/checkpoint-v1`, once: run only for a new version's.

python -m tests.connector.make_golden_checkpoint FOLDER
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

import pulsar_spark

GOLDEN = Path(__file__).parent.parent / "golden"


def main() -> None:
    checkpoint = Path(sys.argv[1])
    if checkpoint.exists():
        raise SystemExit(f"{checkpoint} exists: a golden file is never written again")
    with tempfile.TemporaryDirectory() as root:
        shutil.copytree(GOLDEN / "log-v1", root, dirs_exist_ok=True)
        spark = pulsar_spark.session(master="local[1]")
        source = spark.readStream.format("pulsarlite").option("topic", "orders")
        source = source.option("startingOffsets", "earliest").option("maxMessagesPerTrigger", 3)
        writer = source.load(root).writeStream.format("noop")
        writer = writer.option("checkpointLocation", str(checkpoint))
        writer.trigger(availableNow=True).start().awaitTermination()
        spark.stop()
    # As if the query had been stopped after its first batch.
    for folder in ("offsets", "commits"):
        for file in (checkpoint / folder).iterdir():
            if file.name not in ("0", ".0.crc"):
                file.unlink()


if __name__ == "__main__":
    main()
