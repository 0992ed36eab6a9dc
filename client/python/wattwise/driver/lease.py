"""Keeps a trial's lease while its command runs, and learns from the server when it must stop."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from wattwise import v1
from wattwise.errors import JobNotFoundError, TrialNotFoundError, WattwiseError, log
from wattwise.training.session import BEATS_PER_LEASE

if TYPE_CHECKING:
    from typing_extensions import Self

    from wattwise.rpc.client import Client

_LONGEST_BEAT_SECONDS = 5.0
"""A command without a client hears of a stop no later than this."""


class Lease:
    """Sends heartbeats from a thread for as long as the block lasts.

    Args:
        client: for calls that are not repeated.
        trial: the trial.
        lease_seconds: its lease; 0 never runs out.

    Attributes:
        stopped: the server has said that the trial is over, or no longer knows it.
        reported: somebody has reported results of it.
        cost_bound: the cost beyond which it cannot converge, in joules; None if there is none yet.
    """

    def __init__(self, client: Client, trial: v1.TrialId, lease_seconds: float) -> None:
        self.stopped = False
        self.reported = False
        self.cost_bound: float | None = None
        self._client = client
        self._trial = trial
        self._every = min(lease_seconds / BEATS_PER_LEASE, _LONGEST_BEAT_SECONDS) or _LONGEST_BEAT_SECONDS
        self._over = threading.Event()
        self._is_away = False
        self._thread = threading.Thread(target=self._keep, name="wattwise-lease", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        # Not waited for: it may be in a call to a server that does not answer.
        self._over.set()

    def _keep(self) -> None:
        while not self._over.is_set() and not self.stopped:
            try:
                self._heed(self._client.heartbeat(self._trial))
                self._is_away = False
            except (JobNotFoundError, TrialNotFoundError):
                self.stopped = True
            except WattwiseError as error:
                self._warn(error)
            self._over.wait(self._every)

    def _heed(self, decision: v1.Decision) -> None:
        self.reported = self.reported or decision.cost > 0
        self.cost_bound = decision.cost_bound if decision.HasField("cost_bound") else None
        self.stopped = decision.stop_train

    def _warn(self, error: WattwiseError) -> None:
        if not self._is_away and not self._over.is_set():
            self._is_away = True
            log.warning("%s; training goes on", error)
