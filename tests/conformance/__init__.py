"""Replays the behaviour tables with the clients of all languages: `make conformance`."""
