"""What can be wrong with a replay that somebody asked for."""

from wattwise.errors import WattwiseError


class ReplayError(WattwiseError):
    """The replay cannot be run as asked; the message says what to change."""
