"""What is done to a topic from time to time: compaction, clean-up of transactions, redrive.

Each is one commit that says what may go, or a few transactions; nothing is deleted without it.
"""
