"""Tests of the policies, without a server."""
