"""Tests of `wattwise_server.observability`."""
