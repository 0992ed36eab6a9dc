"""Tests of the energy monitors."""
