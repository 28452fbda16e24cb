"""What other programs were seen to offer or to do, and what records it."""
