"""The errors of a replay."""

from wattwise.errors import WattwiseError


class ReplayError(WattwiseError):
    """The replay cannot be run; the message says what to change."""


class ExhaustedError(ReplayError):
    """A policy has no batch size left."""
