"""A trial's calls to the server about power limits, which never hold up the training for long."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from wattwise import v1
from wattwise.errors import (
    InvalidRequestError,
    JobNotFoundError,
    NotPossibleNowError,
    ServerUnavailableError,
    TrialDeletedError,
    TrialNotFoundError,
    WattwiseError,
    log,
)
from wattwise.rpc.client import Client

T = TypeVar("T")

_PAUSE_FACTOR = 20.0
"""After a failed call, calls pause for this many times its duration: training loses 5 % of its time at most."""

_REFUSALS = (InvalidRequestError, JobNotFoundError, NotPossibleNowError, TrialDeletedError, TrialNotFoundError)
"""What the server answers to a profile that it will never take."""


class PowerLimitCalls:
    """Asks for the known limit and reports profiles. A failed call is logged, not raised.

    Attributes:
        unreported: the profile that the server has not accepted yet; empty if there is none.
    """

    def __init__(
        self,
        connect: Callable[[], Client],
        trial: v1.TrialId,
        claim_outage_warning: Callable[[float], bool] = lambda _begun_at: True,
    ) -> None:
        self._connect = connect
        self._trial = trial
        self._claim_outage_warning = claim_outage_warning
        self._not_before = 0.0
        self._warned = False
        self.unreported: tuple[v1.PowerSample, ...] = ()

    def acquire(self) -> v1.AcquirePowerLimitResponse | None:
        """Returns what this trial does about the power limit; None if the call failed."""
        return self._attempt(lambda client: client.acquire_power_limit(self._trial))

    def report(self, samples: Sequence[v1.PowerSample]) -> float | None:
        """Reports a profile, and keeps it for `report_again` if the call fails.

        Returns:
            The cheapest limit that any trial has reported, in watts; None if the call failed.
        """
        self.unreported = tuple(samples)
        return self.report_again()

    def report_again(self) -> float | None:
        """Reports the unreported profile, if there is one; returns the same as `report`."""
        samples = self.unreported
        if not samples:
            return None
        limit = self._attempt(lambda client: client.report_power_profile(self._trial, samples))
        if limit is not None:
            self.unreported = ()
        return limit

    def _attempt(self, call: Callable[[Client], T]) -> T | None:
        begun = time.monotonic()
        if begun < self._not_before:
            return None
        try:
            with self._connect() as client:
                answer = call(client)
        except WattwiseError as error:
            ended = time.monotonic()
            self._not_before = ended + _PAUSE_FACTOR * (ended - begun)
            self._note_failure(error, begun)
            return None
        self._warned = False
        return answer

    def _note_failure(self, error: WattwiseError, begun: float) -> None:
        rejected = isinstance(error, _REFUSALS) and not error.retryable
        if rejected:
            self.unreported = ()
        if not self._warned:
            self._warned = True
            outage = isinstance(error, ServerUnavailableError)
            level = logging.INFO if outage and not self._claim_outage_warning(begun) else logging.WARNING
            what = "dropped" if rejected else "repeated after the epoch"
            log.log(level, "%s; training continues, and the call about power limits is %s", error, what)
