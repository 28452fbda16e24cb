"""What was stored once and must be read for ever: files of each format, in its first version.

`v1/root` is a root with topics, policies, leases, a broker's system topics and its checkpoint;
`v1/records` has what lies elsewhere; `v1/checkpoint` is Spark's. `future` has one file of each
format in version 2, which is refused. `python -m tests.golden.make` writes them.
"""

from pathlib import Path
from typing import Final

GOLDEN: Final = Path(__file__).parent
ROOT: Final = GOLDEN / "v1" / "root"
RECORDS: Final = GOLDEN / "v1" / "records"
CHECKPOINT: Final = GOLDEN / "v1" / "checkpoint"
FUTURE: Final = GOLDEN / "future"
