"""How consumers and the broker meet: system topics, leases, the broker's offset, admin commands.

Both sides import this room; it imports neither.
"""
