"""Retries: exponential backoff with full jitter, under one deadline."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

from wattwise.errors import DeadlineError, InvalidArgumentError, ServerUnavailableError, WattwiseError, log
from wattwise.spec import to_number

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
    """The value of the argument `name`, if it is a timeout.

    Raises:
        InvalidArgumentError: if it is not a number of seconds.
    """
    if 0 <= to_number(value) <= _LONGEST_SECONDS:
        return value
    raise InvalidArgumentError(f"{name}={value!r} is invalid; use a number of seconds from 0 to {_LONGEST_SECONDS:.0f}")


def retrying(
    attempt: Callable[[float], T], timeout: float, search_timeout: float | None = None, *, warns: bool = True
) -> T:
    """Repeats an attempt until it succeeds, fails with an error that is not retryable, or time runs out.

    Args:
        attempt: called with the seconds that are left.
        timeout: seconds for all attempts and the pauses between them.
        search_timeout: seconds after which a server that no attempt has reached is given up; the first failure logs
            one warning. None is `timeout`, without a warning.
        warns: whether that warning is one; False logs it at level INFO.

    Returns:
        The result of the successful attempt.

    Raises:
        WattwiseError: the error of the last attempt; if that one only timed out, the error before, which has the cause.
    """
    begun, searching = time.monotonic(), search_timeout is not None
    left, cause, waits = timeout, None, pauses(0.1, 3.0)
    while True:
        try:
            return attempt(left)
        except DeadlineError as error:
            raise cause or error from None
        except WattwiseError as error:
            # A subclass or a reason shows that a server has answered.
            unreached = type(error) is ServerUnavailableError and not error.reason
            first, searching = cause is None, searching and unreached
            cause, pause = error, next(waits)
            over = time.monotonic() + pause - begun
            left = timeout - over
            if not error.retryable or left <= 0 or (searching and over >= (search_timeout or 0.0)):
                raise
            if first and searching:
                level = logging.WARNING if warns else logging.INFO
                log.log(level, "%s; retrying for %g seconds", error, search_timeout)
        time.sleep(pause)
