"""The behaviour tables, replayed by the clients of all languages: `make conformance`."""
