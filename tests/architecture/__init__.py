"""Rules that the shape of the code keeps, checked by reading the code."""
