"""Pictures for notebooks."""
