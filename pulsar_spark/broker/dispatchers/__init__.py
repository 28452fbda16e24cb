"""The grants of each type of subscription, and its revokes.

A dispatcher reads and changes one subscription's state; it hears no command.
"""
