"""The Wattwise server."""
