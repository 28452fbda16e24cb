"""Every option: name, parser, default, scope, meaning.

Tables only; who uses an option is elsewhere.
"""
