"""What consumers, admins and the broker tell each other, and its form on the wire.

Commands go in, `Ready` comes out; nothing here decides anything.
"""
