"""The broker's rules: its protocol, its step, its dispatchers and subscriptions.

It takes commands and an instant, and returns state and effects; a host does the rest.
"""
