"""The broker's state of a topic partition: subscriptions, consumers, due and delayed messages.

State and its small moves; who may have what is `dispatchers`', in what order is `broker`'s.
"""
