"""What producers and consumers tell of themselves: recorded statistics, OpenTelemetry, traces.

Nothing here knows a topic's files. OpenTelemetry is never imported here but by its user.
"""
