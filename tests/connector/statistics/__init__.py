"""What `connector/statistics` prints, by Pulsar's own names."""
