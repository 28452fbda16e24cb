"""Topics, publishing, reading, consuming and the broker, on files and without Spark.

Every host runs these: Spark, a Python process and the tests.
"""
