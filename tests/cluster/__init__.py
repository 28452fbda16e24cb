"""A real Spark cluster: a master and two workers as processes, applications, a root on S3."""
