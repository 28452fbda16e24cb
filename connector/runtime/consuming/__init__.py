"""A consumer as a streaming source: it reports, plans from grants, withholds what ends queries.

Entered by `subscription_reader`; grants are decided by the broker, never here.
"""
