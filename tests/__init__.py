"""The tests, in rings: core, scenarios, simulation, then connector and state on real Spark."""
