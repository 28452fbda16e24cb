"""Seeded simulation of producers, a broker, and sources that come, go, stall and die.

`python -m tests.simulation --schedules 1000000` runs it; a failure prints how to replay it.
"""
