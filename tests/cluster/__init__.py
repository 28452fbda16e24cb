"""A real Spark cluster: a master and two workers as processes, applications, a root on S3.

The workers' environment lacks Pulsarlite, as on a cluster. `local-cluster` would share the driver's
environment, and containers would be a demand on everybody who runs the tests. It takes minutes, so
CI leaves it out (marker `cluster`).
"""
