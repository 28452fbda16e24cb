"""The kit for users' own tests: a root in memory, a clock that is moved, pytest fixtures.

No rule of Pulsar's and no file: all that happens here happens in the other rooms.
"""

__all__ = ["place"]
