"""Tests of what is told of the server."""
