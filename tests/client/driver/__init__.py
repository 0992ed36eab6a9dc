"""Tests of `wattwise run`."""
