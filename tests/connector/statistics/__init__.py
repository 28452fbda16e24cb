"""The output of `connector/inspect/statistics`, by Pulsar's own names."""
