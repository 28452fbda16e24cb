"""Random programs over the client's whole public face, in processes and threads that take turns."""
