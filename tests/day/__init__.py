"""A day's load on real files, on a clock that is moved: what grows, and what gets slower."""
