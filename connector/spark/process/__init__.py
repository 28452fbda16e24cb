"""The Java and Python processes of Spark: how they start, and what they load.

Nothing here knows a topic.
"""

__all__ = ["child_process", "java_home", "spark_home", "worker_process"]
