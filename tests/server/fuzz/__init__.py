"""What a stranger may send, and what must become of it."""
