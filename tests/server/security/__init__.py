"""Tests of `wattwise_server.security`."""
