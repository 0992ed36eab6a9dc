"""Mutation tests: break the server in thousands of small ways, and count what the tests notice."""
