"""`pulsarlite`, as somebody types it."""
