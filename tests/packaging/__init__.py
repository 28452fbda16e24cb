"""Wheel, sdist and editable install, each outside the repository."""
