"""Real servers of the object stores' protocols, on this machine: `make stores`."""
