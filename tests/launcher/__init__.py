"""The launcher `./run`, and how a Java is found."""
