"""Tests of the source and the sink: on real Spark, and as Spark calls them but without it."""
