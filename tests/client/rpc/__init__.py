"""Tests of `wattwise.rpc`."""
