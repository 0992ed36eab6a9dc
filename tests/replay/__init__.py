"""`wattwise replay`."""
