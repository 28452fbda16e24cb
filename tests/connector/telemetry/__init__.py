"""What producers, consumers and functions tell of themselves."""
