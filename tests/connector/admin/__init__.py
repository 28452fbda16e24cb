"""Looking after topics, as pulsar-admin does."""
