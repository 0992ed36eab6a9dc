"""Tests of `wattwise.training`."""
