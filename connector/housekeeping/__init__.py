"""What is done to topics from time to time: compaction, clean-up, redrive; who does it by itself.

Each is one commit that says what may go, or a few transactions; nothing is deleted without it, and
no batch waits for it.
"""
