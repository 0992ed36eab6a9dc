"""Arbitrary input from clients, and what must happen to it."""
