"""What is done to topics from time to time: compaction, clean-up; and who does it by itself.

Each is one commit that says what may go; nothing is deleted without it, and no batch waits for it.
"""
