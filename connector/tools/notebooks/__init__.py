"""Pictures for notebooks: cursors, hash rings and times, and data for examples.

Nothing here looks into a topic: a picture is made of what it is given. Imported by the public
names `pulsar_spark.pictures` and `pulsar_spark.examples`.
"""

__all__ = ["drawing", "flights"]
