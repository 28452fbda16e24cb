"""The same programs on a real Pulsar and here: their steps are data, and so are their traces."""
