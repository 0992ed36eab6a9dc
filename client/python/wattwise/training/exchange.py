"""The state that the trainer's thread and the session's thread share: measurements one way, decisions the other.

Nothing here calls the server. A signal handler may interrupt the trainer's thread anywhere and call these methods:
therefore the lock is re-entrant, and no method relies on what it read before it waited.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from wattwise import v1
from wattwise.errors import WattwiseError, log
from wattwise.rpc.answers import MOST_WARNINGS, heartbeat_seconds

_MAX_PENDING = 10_000


class PendingReport(NamedTuple):
    """A measurement that the server has not acknowledged; `number` counts from 1."""

    number: int
    result: v1.TrainingResult


class Ending(NamedTuple):
    """Why the trainer ends its trial, and until when (monotonic seconds) it waits for the server."""

    reason: v1.EndReason.ValueType
    deadline: float


class Exchange:
    """The state of a trial's session.

    Args:
        address: the server's address.
        on_refusal: called with a measurement that the server refused.

    Attributes:
        changed: held to write an attribute or to read several; notified after every change.
        pending: the measurements that the server has not acknowledged, oldest first.
        decision: the server's newest decision.
        beat_seconds: the pause between two heartbeats, as the server's newest answer says.
        stopped: whether the server has ended the trial.
        away: whether the server does not answer at the moment.
        detached: whether the server has no such trial; `away` then stays true.
        ending: set once the trainer ends the trial.
        finished: whether the session's thread has stopped.
    """

    def __init__(self, address: str, on_refusal: Callable[[v1.TrainingResult], None] = lambda _: None) -> None:
        self._address = address
        self._on_refusal = on_refusal
        self.changed = threading.Condition(threading.RLock())
        self.pending: deque[PendingReport] = deque(maxlen=_MAX_PENDING)
        self.decision: v1.Decision | None = None
        self.beat_seconds = math.inf
        self.stopped = False
        self.away = False
        self.detached = False
        self.ending: Ending | None = None
        self.finished = False
        self._posted = 0
        self._answered = 0
        self._refusal: WattwiseError | None = None
        # The trainer has warned of unconnected ranks before it had a trial.
        self._warned = {v1.WARNING_REASON_UNCONNECTED_RANKS, v1.WARNING_REASON_NO_ENERGY}
        self._outage_warned = False
        self._outage_ended_at = 0.0

    @property
    def over(self) -> bool:
        """Whether the trial is over, for the server or for this trainer."""
        return self.stopped or self.ending is not None

    def post(self, result: v1.TrainingResult) -> PendingReport:
        """Adds a measurement to those that are pending.

        Raises:
            WattwiseError: if the server refused an earlier measurement since the last call.
        """
        with self.changed:
            self._raise_refusal()
            self._posted += 1
            report = PendingReport(self._posted, result)
            self.pending.append(report)
            self.changed.notify_all()
            return report

    def change(self, change: Callable[[v1.TrainingResult], None]) -> None:
        """Changes the pending measurements; the trainer's thread keeps its own."""
        with self.changed:
            for place, (number, result) in enumerate(self.pending):
                changed = v1.TrainingResult()
                changed.CopyFrom(result)
                change(changed)
                self.pending[place] = PendingReport(number, changed)

    def skip(self, epoch: int) -> None:
        """Drops the pending measurements up to an epoch, which the server has."""
        with self.changed:
            while self.pending and self.pending[0].result.measurement.epoch <= epoch:
                self._acknowledge(self.pending[0])
            self.changed.notify_all()

    @property
    def next_report(self) -> PendingReport | None:
        """The measurement to send next; None if all are acknowledged."""
        with self.changed:
            return self.pending[0] if self.pending else None

    def answer_to(self, report: PendingReport, timeout: float) -> v1.Decision | None:
        """Waits for the decision on a measurement, unless the server is away; None if there is none.

        A server that does not answer within `timeout` seconds counts as away.

        Raises:
            WattwiseError: if the server refused the measurement.
        """
        with self.changed:
            known = self.changed.wait_for(
                lambda: self._answered >= report.number or self.over or self.away or self.finished, timeout
            )
            self._raise_refusal()
            if self.stopped or self._answered >= report.number:
                return self.decision
        if not known:
            self.lost(f"no answer within {timeout:g} s from the Wattwise server at {self._address}")
        return None

    def answer(self, report: PendingReport | None, decision: v1.Decision) -> None:
        """Stores a decision, which answers no report if it is a heartbeat's or a pushed stop.

        Each of its warnings is logged once per trial.
        """
        self.found()
        for warning in decision.warnings:
            if warning.reason not in self._warned and len(self._warned) < MOST_WARNINGS:
                self._warned.add(warning.reason)
                log.warning("%s", warning.message)
        with self.changed:
            if report is not None:
                self._acknowledge(report)
            self.beat_seconds = heartbeat_seconds(decision)
            if (report is not None or decision.stop_train) and not self.stopped:
                self.decision = decision
                self.stopped = decision.stop_train
            self.changed.notify_all()

    def refuse(self, report: PendingReport, error: WattwiseError) -> None:
        """Stores the refusal of a measurement; the trainer's next call raises it."""
        self._on_refusal(report.result)
        self.found()
        with self.changed:
            self._acknowledge(report)
            self._refusal = error
            self.changed.notify_all()

    def lost(self, cause: str) -> None:
        """Marks the server as away, and warns once per outage; `cause` names the server and the fault."""
        with self.changed:
            if self.away or self.over:
                return
            self.away = True
            level = logging.WARNING if self.claim_outage_warning(time.monotonic()) else logging.INFO
            self.changed.notify_all()
        log.log(level, "%s; training continues, and its measurements are kept until the server is back", cause)

    def begin_away(self) -> None:
        """Begins with a server that is away, which was warned of."""
        self.away = self._outage_warned = True

    def detach(self) -> None:
        """Marks the trial as one that the server does not have: nothing is sent until it ends."""
        with self.changed:
            self.detached = self.away = True
            self.pending.clear()
            self.changed.notify_all()

    def claim_outage_warning(self, begun_at: float) -> bool:
        """Whether the caller should warn of the outage that failed its call: true for the first caller of each outage.

        A call that began (in monotonic seconds) before an outage ended failed in that outage, which was warned of.
        """
        with self.changed:
            if begun_at < self._outage_ended_at:
                return False
            first, self._outage_warned = not self._outage_warned, True
            return first

    def found(self) -> None:
        """Marks the server as present, and ends the outage that was warned of."""
        with self.changed:
            if not self._outage_warned or self.detached:
                return
            self._outage_warned, self._outage_ended_at = False, time.monotonic()
            self.away = False
            self.changed.notify_all()
        log.info("the Wattwise server at %s is back", self._address)

    def end(self, ending: Ending) -> None:
        """Asks the session's thread to end the trial; the first reason counts."""
        with self.changed:
            self.ending = self.ending or ending
            self.changed.notify_all()

    def finish(self) -> None:
        """Marks the session's thread as stopped."""
        with self.changed:
            self.finished = True
            self.changed.notify_all()

    def wait_finished(self, timeout: float) -> bool:
        """Waits up to `timeout` seconds for `finish`; returns whether it was called."""
        with self.changed:
            return self.changed.wait_for(lambda: self.finished, timeout)

    def _acknowledge(self, report: PendingReport) -> None:
        self._answered = max(self._answered, report.number)
        while self.pending and self.pending[0].number <= report.number:
            self.pending.popleft()

    def _raise_refusal(self) -> None:
        refusal, self._refusal = self._refusal, None
        if refusal is not None:
            raise refusal
