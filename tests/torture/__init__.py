"""Random schedules over what really runs, readers, sinks and broker, without a JVM."""
