"""A topic's log as values: its commits, their fold, publications, producers, chunks, duplicates.

No file is opened and no name chosen here: `connector/runtime/topics` stores and loads these values.
"""
