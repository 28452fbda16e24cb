"""The budget for buckets: how many requests, one after the other or at all, and what they cost."""
