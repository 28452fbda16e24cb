"""The one place that says which version this is; setup.cfg reads it from here."""

from __future__ import annotations

__version__ = "0.1.0"
