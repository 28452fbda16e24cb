"""`python -m pulsar_spark COMMAND`: hands the arguments to the connector's command line.

Invariant: nothing heavy is imported before the command line itself is needed.
"""

from __future__ import annotations

import sys
from importlib import import_module


def main() -> int:
    """Run the command line on `sys.argv`; the process's exit status."""
    command_line = import_module("pulsar_spark.connector.tools.command_line.command_line")
    return int(command_line.main(sys.argv[1:]) or 0)


if __name__ == "__main__":
    sys.exit(main())
