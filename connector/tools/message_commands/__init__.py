"""`pulsarlite produce`, `consume`, `read` and `perf`: what sends and receives from a terminal.

Only a client is used here: no topic is looked into or changed otherwise.
"""
