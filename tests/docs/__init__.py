"""The written documents: current, complete, and without dead ends."""
