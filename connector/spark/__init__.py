"""What Spark asks of its guests: Java, its home, worker processes, columns, waiting.

No topic, no log: this room would serve another data source as well.
"""
