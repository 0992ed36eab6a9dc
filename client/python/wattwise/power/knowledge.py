"""What the server knows of power limits, asked and told so that a server that is away never holds the training up."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from wattwise import v1
from wattwise.errors import InvalidRequestError, JobNotFoundError, TrialNotFoundError, WattwiseError, log
from wattwise.rpc.client import Client

T = TypeVar("T")

_SHARE = 20.0
"""After a failed call the next one waits that many times as long as it took, so that training loses 5 % at most."""


class Knowledge:
    """A trial's calls to the server about power limits.

    Args:
        connect: opens a client for single calls.
        trial: the trial.
        claim_outage_warning: whether a failed call should warn of the server's present outage.

    Attributes:
        unreported: the profile that the server has not taken yet; empty if there is none.
    """

    def __init__(
        self, connect: Callable[[], Client], trial: v1.TrialId, claim_outage_warning: Callable[[], bool] = lambda: True
    ) -> None:
        self._connect = connect
        self._trial = trial
        self._claim_outage_warning = claim_outage_warning
        self._not_before = 0.0
        self._warned = False
        self.unreported: tuple[v1.PowerSample, ...] = ()

    def ask(self) -> v1.GetPowerLimitResponse | None:
        """The server's answer; None if there is none at the moment."""
        return self._attempt(lambda client: client.get_power_limit(self._trial))

    def report(self, samples: Sequence[v1.PowerSample]) -> float | None:
        """Reports a profile, and keeps it for `report_again` while the server is away.

        Args:
            samples: the profile.

        Returns:
            The cheapest limit that any trial has reported, in watts; None if the server did not say.
        """
        self.unreported = tuple(samples)
        return self.report_again()

    def report_again(self) -> float | None:
        """Reports the profile that is kept, if one is; answers as `report` does."""
        kept = self.unreported
        if not kept:
            return None
        limit = self._attempt(lambda client: client.report_power_profile(self._trial, kept))
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
            self._not_before = ended + _SHARE * (ended - begun)
            self._fail(error)
            return None
        self._warned = False
        return answer

    def _fail(self, error: WattwiseError) -> None:
        refused = isinstance(error, InvalidRequestError | JobNotFoundError | TrialNotFoundError)
        if refused:
            # To say it again would not help.
            self.unreported = ()
        if not self._warned:
            self._warned = True
            after = "what it was told is dropped" if refused else "the server is asked again after the epoch"
            level = logging.WARNING if refused or self._claim_outage_warning() else logging.INFO
            log.log(level, "%s; training goes on, and as for power limits, %s", error, after)
