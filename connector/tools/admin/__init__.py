"""`Admin`: topics, subscriptions, namespaces, tenants and schemas, in Python.

Needs no Spark. The command line is a face of this room, and prints what is returned here.
"""

__all__ = ["admin", "messages", "namespaces", "schemas", "subscriptions", "topics"]
