"""What the broker knows of a topic partition: subscriptions, consumers, what is due or delayed.

State and its small moves; who may have what is `dispatchers`', in what order is `broker`'s.
"""
