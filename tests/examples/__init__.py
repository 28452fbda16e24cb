"""The programs of examples/: on a moved clock, as processes, and under Spark."""
