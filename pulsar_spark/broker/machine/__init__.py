"""The broker's step: commands and time in, new state and `Ready` out.

Pure: no clock, no files, no Spark; where its state is stored is `hosting`'s.
"""

__all__ = ["pending_acknowledgments", "retention", "step"]
