"""The system topics in which consumers and the broker meet, leases, the broker's offset.

Both sides import this room; it imports neither.
"""
