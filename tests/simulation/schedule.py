"""Which schedule a seed stands for: of one partition in detail, or of a cluster."""

from __future__ import annotations

from tests.simulation.cluster import Cluster, run_cluster
from tests.simulation.world import World, run_world

CLUSTERS_ONE_IN = 10
"""A cluster costs three times as much."""


def is_cluster(seed: int) -> bool:
    return seed % CLUSTERS_ONE_IN == CLUSTERS_ONE_IN - 1


def run_schedule(seed: int) -> World | Cluster:
    """One schedule from its seed. ViolationError if a promise is broken; the world, for a look."""
    return run_cluster(seed) if is_cluster(seed) else run_world(seed)
