"""Tests of the storage contract and its backends."""
