"""The command `pulsarlite`: one file a noun, which declares its commands and does them.

No rule of Pulsar's is decided here.
"""

__all__ = ["command_line", "noun"]
