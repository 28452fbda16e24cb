"""Statistics, views, telemetry and verification of what is stored.

Nothing here changes a topic.
"""
