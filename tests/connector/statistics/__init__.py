"""What `connector/inspect/statistics` prints, by Pulsar's own names."""
