"""Tests of the energy meters."""
