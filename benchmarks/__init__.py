"""Benchmarks of the server, relative to baselines measured in the same run: `make bench`.

`decisions` and `savings` are the evidence for the server's decisions and claims. Nothing here is installed.
"""
