"""Tests of the knowledge-gradient policy, as the package has its modules."""
