"""Seeded simulation of producers, a broker, and sources that come, go, stall and die.

Most schedules are of one partition (`world`), with the step alone; one in ten is of topics and
partitions under one broker (`cluster`), with the source of a consumer, leases, and growth.

`python -m tests.simulation --schedules 1000000` runs it; a failure prints how to replay it.
"""
