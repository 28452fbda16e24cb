"""Reading without a subscription, and what every reader shares: views, tasks, columns, values.

Nothing here talks to the broker.
"""
