"""Retries: exponential backoff with full jitter, under one deadline."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

from wattwise.errors import DeadlineError, InvalidArgumentError, ServerUnavailableError, WattwiseError, log
from wattwise.rules import finite

T = TypeVar("T")

_LONGEST_SECONDS = 365 * 24 * 3600.0
"""gRPC does not wait at all if a timeout is much longer than this."""


def pauses(first: float, longest: float) -> Iterator[float]:
    """Yields an endless series of waiting times, each drawn between 0 and a bound that doubles.

    Args:
        first: the first bound, in seconds.
        longest: the largest bound, in seconds.
    """
    # Imported here because most processes never wait.
    from random import SystemRandom  # noqa: PLC0415

    # Not the global generator: a retry must not change the random numbers of a trainer that seeds it.
    jitter = SystemRandom()
    bound = first
    while True:
        yield jitter.uniform(0, bound)
        bound = min(longest, 2 * bound)


def check_seconds(name: str, value: float) -> float:
    """Returns the value of the argument `name`, if it is a timeout.

    Raises:
        InvalidArgumentError: if it is not a number of seconds.
    """
    if 0 <= finite(value) <= _LONGEST_SECONDS:
        return value
    raise InvalidArgumentError(f"{name}={value!r} is invalid; use a number of seconds from 0 to {_LONGEST_SECONDS:.0f}")


class Retries:
    """The attempts of a call: whether another one follows a failed one, and when.

    Args:
        timeout: seconds for all attempts and the pauses between them.
        search_timeout: seconds after which a server that no attempt has reached is given up; the first failure logs
            one warning. None is `timeout`, without a warning.
        warns: whether that warning is one; False logs it at level INFO.

    Attributes:
        left: the seconds that are left for the next attempt.
    """

    def __init__(self, timeout: float, search_timeout: float | None = None, *, warns: bool = True) -> None:
        self.left = self._timeout = timeout
        self._search_timeout = search_timeout
        self._searching = search_timeout is not None
        self._level = logging.WARNING if warns else logging.INFO
        self._begun = time.monotonic()
        self._waits = pauses(0.1, 3.0)
        self._cause: WattwiseError | None = None

    def pause_after(self, error: WattwiseError) -> float:
        """Returns the seconds until the next attempt.

        Raises:
            WattwiseError: the error of the last attempt, if no other one follows; if that one only timed out, the error
                before, which has the cause.
        """
        if isinstance(error, DeadlineError):
            raise self._cause or error from None
        # A subclass or a reason shows that a server has answered.
        self._searching &= type(error) is ServerUnavailableError and not error.reason
        first, self._cause, pause = self._cause is None, error, next(self._waits)
        over = time.monotonic() + pause - self._begun
        self.left = self._timeout - over
        given_up = self._searching and over >= (self._search_timeout or 0.0)
        if not error.retryable or self.left <= 0 or given_up:
            raise error
        if first and self._searching:
            log.log(self._level, "%s; retrying for %g seconds", error, self._search_timeout)
        return pause


def retrying(attempt: Callable[[float], T], timeout: float) -> T:
    """Repeats an attempt until it succeeds, fails with an error that is not retryable, or time runs out.

    Args:
        attempt: called with the seconds that are left.
        timeout: seconds for all attempts and the pauses between them.

    Raises:
        WattwiseError: as `Retries.pause_after`.
    """
    retries = Retries(timeout)
    while True:
        try:
            return attempt(retries.left)
        except WattwiseError as error:
            pause = retries.pause_after(error)
        time.sleep(pause)
