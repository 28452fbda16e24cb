"""The Java and Python processes of Spark: how they start, and what they load.

Nothing here knows a topic.
"""
