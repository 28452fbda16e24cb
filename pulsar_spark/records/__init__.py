"""How a record is stored and read back: its version, its checksum, its bounds.

What a record says is of no concern here; every stored format is declared with `StoredFormat`.
"""
