"""Functions for users' queries: acknowledge, process, transaction.

They are made of the format's options; whatever they do, options alone could do too.
"""

__all__ = ["acknowledging", "batch_transaction", "processing"]
