"""Statistics as Pulsar prints them: `topics stats` and its relatives, and metrics of topics.

Nothing is counted here that a view does not count: rows are summed, named and printed.
"""
