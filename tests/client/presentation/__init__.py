"""Tests of `wattwise.presentation`."""
