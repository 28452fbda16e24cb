"""The Spark data source, its readers and writers, and the session.

No topic, no log: this room would serve another data source as well.
"""
