"""Folders and object stores behind one small interface.

Bytes under names, put-if-absent and conditional replace; what the bytes mean is not known here.
"""

__all__ = [
    "clock", "delayed_flush", "folder_watch", "local_store", "memory_store", "object_store",
    "polling", "process_identity", "service_url",
]  # fmt: skip
