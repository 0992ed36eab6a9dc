"""`make decisions`."""
