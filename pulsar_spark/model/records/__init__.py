"""Stored records: version, checksum and bounds.

What a record says is of no concern here; every stored format is declared with `StoredFormat`.
"""

__all__ = ["base85", "stored_data", "stored_record"]
