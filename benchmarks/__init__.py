"""Benchmarks of the server, relative to baselines measured in the same run: `make bench`."""
