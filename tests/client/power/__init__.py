"""Tests of power limits, over a stub of NVIDIA's library."""
