"""The client library against the real server."""
