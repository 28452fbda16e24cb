"""What each type of subscription grants, and takes back.

A dispatcher reads and changes one subscription's state; it hears no command.
"""
