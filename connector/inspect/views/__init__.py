"""The states of a queue as tables: one function gives Arrow, and Spark and datasets are shells.

Nothing here changes anything, and nothing but `view_reader` knows Spark.
"""
