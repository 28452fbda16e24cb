"""The dashboard: its pages over HTTP, and in a browser."""
