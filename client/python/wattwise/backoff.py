"""Waiting between attempts: exponential backoff with full jitter, under one deadline."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

from wattwise.errors import DeadlineError, WattwiseError

T = TypeVar("T")

# Never the generator that the trainer seeds: what it draws must not depend on the state of a network.
_random = random.SystemRandom()


def pauses(first: float, longest: float) -> Iterator[float]:
    """Yields waiting times without end, each drawn from 0 to a bound that doubles.

    Args:
        first: the first bound, in seconds.
        longest: the bound that is never exceeded, in seconds.
    """
    bound = first
    while True:
        yield _random.uniform(0, bound)
        bound = min(longest, 2 * bound)


def retrying(attempt: Callable[[float], T], timeout: float) -> T:
    """Attempts something until it succeeds, fails for good, or the time is up.

    Args:
        attempt: is called with the seconds that are left.
        timeout: seconds for all attempts and the waiting between them.

    Returns:
        What the first successful attempt returned.

    Raises:
        WattwiseError: of the last attempt; or, if that only ran out of time, of the one before, which knows the cause.
    """
    deadline = time.monotonic() + timeout
    left, cause, waits = timeout, None, pauses(0.1, 3.0)
    while True:
        try:
            return attempt(left)
        except DeadlineError as error:
            raise cause or error from error.__cause__
        except WattwiseError as error:
            cause, pause = error, next(waits)
            left = deadline - time.monotonic() - pause
            if not error.retryable or left <= 0:
                raise
        time.sleep(pause)
