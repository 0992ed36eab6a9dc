"""The error of a replay."""

from wattwise.errors import WattwiseError


class ReplayError(WattwiseError):
    """The replay cannot be run; the message says what to change."""
