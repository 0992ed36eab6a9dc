"""Waiting between attempts: exponential backoff with full jitter, under one deadline."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import TypeVar

from wattwise.errors import DeadlineError, InvalidArgumentError, ServerUnavailableError, WattwiseError, log
from wattwise.quantity import quantity

T = TypeVar("T")

_LONGEST_SECONDS = 365 * 24 * 3600.0
"""Much more is too much for gRPC, which then waits for nothing."""


def pauses(first: float, longest: float) -> Iterator[float]:
    """Yields waiting times without end, each drawn from 0 to a bound that doubles.

    Args:
        first: the first bound, in seconds.
        longest: the bound that is never exceeded, in seconds.
    """
    # Imported where it is needed, which it hardly ever is: it would be the slowest part of this package's import.
    from random import SystemRandom  # noqa: PLC0415

    # Never the generator that the trainer seeds: what it draws must not depend on the state of a network.
    jitter = SystemRandom()
    bound = first
    while True:
        yield jitter.uniform(0, bound)
        bound = min(longest, 2 * bound)


def seconds(name: str, value: float) -> float:
    """A time that is to be waited at most.

    Args:
        name: what the user calls it.
        value: seconds.

    Raises:
        InvalidArgumentError: if it is none.
    """
    if 0 <= quantity(value) <= _LONGEST_SECONDS:
        return value
    raise InvalidArgumentError(f"{name}={value!r} is no time to wait; give seconds, from 0 to {_LONGEST_SECONDS:.0f}")


def retrying(attempt: Callable[[float], T], timeout: float, search_timeout: float | None = None) -> T:
    """Attempts something until it succeeds, fails for good, or the time is up.

    Args:
        attempt: is called with the seconds that are left.
        timeout: seconds for all attempts and the waiting between them.
        search_timeout: seconds of these for a server that no attempt has reached, which is warned of once; None is all
            of them, in silence.

    Returns:
        What the first successful attempt returned.

    Raises:
        WattwiseError: of the last attempt; or, if that only ran out of time, of the one before, which knows the cause.
    """
    begun, searching = time.monotonic(), search_timeout is not None
    left, cause, waits = timeout, None, pauses(0.1, 3.0)
    while True:
        try:
            return attempt(left)
        except DeadlineError as error:
            raise cause or error from None
        except WattwiseError as error:
            first, searching = cause is None, searching and _unreached(error)
            cause, pause = error, next(waits)
            over = time.monotonic() + pause - begun
            left = timeout - over
            if not error.retryable or left <= 0 or (searching and over >= (search_timeout or 0.0)):
                raise
            if first and searching:
                log.warning("%s; it is looked for during %g seconds", error, search_timeout)
        time.sleep(pause)


def _unreached(error: WattwiseError) -> bool:
    """Whether nobody who speaks for a Wattwise server said so."""
    return type(error) is ServerUnavailableError and not error.reason
