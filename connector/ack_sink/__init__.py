"""Sinks that acknowledge: rows of message ids folded into cursors, and told to the broker.

Entered by `acknowledgment_writer`; what a report means is the core's.
"""
