"""Handwritten digits, trained again and again under a Wattwise server."""
