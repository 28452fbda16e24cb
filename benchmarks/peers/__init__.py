"""A real Apache Pulsar and a real Apache Kafka beside us: versions, how they run, what is measured.

Nothing here is needed by Pulsarlite. What is fetched lies in Maven's and the user's cache folders.
"""
