"""Tests of `wattwise_server.usecases`."""
