"""The time of the database, without asking it for every call."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

from wattwise_server.clock import elapsed_micros

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_MICROSECOND = timedelta(microseconds=1)


class DatabaseClock:
    """This machine's elapsed time, set by the database's clock; it goes back only if that was set back by seconds.

    An answer of the database is as old as half of the time that it took, give or take the other half. So the one that
    took the shortest time counts, until it is a minute old: clocks drift.
    """

    _TRUSTED_SECONDS = 60.0
    _SET_BACK_MICROS = 5_000_000
    """Far more than two answers can differ by, and as much as the leases of the database allow for."""

    def __init__(self) -> None:
        self._offset = 0
        self._uncertainty = float("inf")
        self._set_at = 0
        self._newest = 0

    def __call__(self) -> datetime:
        """Returns the time in UTC."""
        self._newest = max(self._newest, elapsed_micros() + self._offset)
        return _EPOCH + self._newest * _MICROSECOND

    def set(self, micros: int, asked: int, answered: int) -> bool:
        """Sets the clock; returns whether it goes back.

        Args:
            micros: The database's time, in microseconds since 1970.
            asked: When it was asked, in microseconds of `elapsed_micros`.
            answered: When its answer came.
        """
        uncertainty = (answered - asked) / 2e6
        offset = micros - (asked + answered) // 2
        # The database's clock was set, or another one took over.
        stepped = abs(offset - self._offset) > (uncertainty + self._uncertainty) * 1e6 + 1e5
        if stepped or uncertainty <= self._uncertainty or answered - self._set_at > self._TRUSTED_SECONDS * 1e6:
            self._offset, self._uncertainty, self._set_at = offset, uncertainty, answered
        back = self._newest - (answered + self._offset) > self._SET_BACK_MICROS
        if back:
            self._newest = 0
        return back
