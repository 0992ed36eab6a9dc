"""Tests of `wattwise_server.commands`."""
