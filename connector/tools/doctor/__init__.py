"""The checks of a machine and of a root, for when something does not work.

Each check yields findings, which say what to do. None changes a topic; what is written to try a
store out is deleted again. No rule of Pulsar's is decided here.
"""

__all__ = ["finding", "machine", "root_checks"]
