"""Fixtures of the tests of the evidence."""

from tests.replay.conftest import folder

__all__ = ["folder"]
