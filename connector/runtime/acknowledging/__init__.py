"""Sinks that acknowledge: rows of message ids become cursors, and commands to the broker.

Entered by `acknowledgment_sink`; what a report means is the core's.
"""

__all__ = ["acknowledgment_rows", "acknowledgment_writer", "outcome_rows", "transaction_conflicts"]
