"""Tests of `wattwise.commands`."""
