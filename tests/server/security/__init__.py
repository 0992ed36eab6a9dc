"""Tests of who gets in."""
