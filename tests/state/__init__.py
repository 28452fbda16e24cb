"""Tests of what runs in Spark's state stores."""
