"""Tests of `wattwise_server.rpc`."""
