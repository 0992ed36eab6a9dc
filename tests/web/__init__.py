"""The web page, against a real server."""
