"""What is done to a topic from time to time: compaction, clean-up of transactions.

Each is one commit that says what may go; nothing is deleted without it.
"""
