"""What the trainer's thread and the session's thread share of a running trial.

Nothing here calls the server. A signal handler may interrupt the trainer's thread anywhere, call `close` and wait:
therefore the lock is re-entrant, and no method relies on what it read before it waited. The journal has a lock of its
own, which is taken first: while the handler waits, the session's thread must not hold the lock of the exchange and wait
for a journal that the interrupted code is writing. Nor may a slow disk delay heartbeats. Only the end of a trial takes
the journal in any order, and waits for it for a bounded time.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import deque
from typing import NamedTuple

from wattwise import v1
from wattwise.errors import WattwiseError, log
from wattwise.rpc.answers import MOST_WARNINGS, heartbeat_seconds
from wattwise.training.journal import Journal
from wattwise.training.resume import carry_on
from wattwise.training.state import Event, Link, Progress, TrialState

_JOURNAL_SECONDS = 0.5


class PendingReport(NamedTuple):
    """A measurement that the server has not acknowledged; `number` counts from 1."""

    number: int
    result: v1.TrainingResult


class Ending(NamedTuple):
    """The end of a trial by its trainer.

    Attributes:
        reason: why the trainer ends it.
        deadline: until when (monotonic seconds) it waits for the server.
        by_driver: whether a driver ends an undecided trial, for a reason of its own.
    """

    reason: v1.EndReason.ValueType
    deadline: float
    by_driver: bool = False


class Exchange:
    """The state of a running trial: measurements go one way, decisions the other.

    Args:
        address: the server's address.
        journal: has every measurement before it is pending.
        link: the link to the server at the start. An outage that the trial starts in was warned of.

    Attributes:
        changed: held to write an attribute or to read several; notified after every change.
        journal: as given.
        state: the state of the trial, which its events change.
        pending: the measurements that the server has not acknowledged, oldest first.
        reported_epoch: the last epoch that the trial reported before it went back to an earlier one: in an earlier
            process, or before a rewind. The server refuses other numbers for the epochs up to there.
        decision: the newest decision: the server's, or the trainer's own.
        beat_seconds: the pause between two heartbeats, as the server's newest answer says.
        ending: set once the trainer waits for the end of the trial to be delivered.
        disconnected: whether the session's thread has made its last call.
    """

    def __init__(self, address: str, journal: Journal, link: Link = Link.TRACKED) -> None:
        self._address = address
        self.journal = journal
        self.changed = threading.Condition(threading.RLock())
        self.state = TrialState(link)
        self.pending: deque[PendingReport] = deque()
        self.reported_epoch = 0
        self.decision: v1.Decision | None = None
        self.beat_seconds = math.inf
        self.ending: Ending | None = None
        self.disconnected = False
        self._owes_ending = False
        self._posted = 0
        self._answered = 0
        self._refusal: WattwiseError | None = None
        self._refused_epoch = 0
        # What this process counted on from, and what the server had, since the server has resumed the trial.
        self._carried: tuple[v1.Measurement, v1.Measurement] | None = None
        # The trainer has warned of unconnected ranks before it had a trial.
        self._warned = {v1.WARNING_REASON_UNCONNECTED_RANKS, v1.WARNING_REASON_NO_ENERGY}
        # When the newest outage that was warned of was over; infinite while it lasts.
        self._outage_over_at = math.inf if link is Link.AWAY else 0.0

    @property
    def link(self) -> Link:
        """The link to the server."""
        return self.state.link

    @property
    def progress(self) -> Progress:
        """The progress of the trial."""
        return self.state.progress

    @property
    def server_knows_end(self) -> bool:
        """Whether the server knows that the trial is over."""
        return self.progress in (Progress.DECIDED, Progress.SETTLED)

    @property
    def done_reporting(self) -> bool:
        """Whether the session stops reporting; after the trainer's own decision, it still sends what is pending."""
        return self.server_knows_end or self.ending is not None

    def report(self, result: v1.TrainingResult, timeout: float) -> bool:
        """Reports the measurement of an epoch; returns whether the server has answered it.

        While the server is known to be away this returns at once; a server that does not answer within `timeout`
        seconds counts as away. The measurement is sent when the server is back. The sums of a trial that was resumed
        late are increased to carry on those that the server had. An epoch up to `reported_epoch` is not sent.
        """
        with self.journal.lock:
            self.carry_on(result.measurement)
            if result.measurement.epoch <= self.reported_epoch:
                return True
            if not self.done_reporting:
                self.journal.add(result)
            if self.link is Link.DETACHED:
                return False
            report = self.post(result)
        with self.changed:
            known = self.changed.wait_for(lambda: self._answered >= report.number or not self._awaits_answers, timeout)
            if self.server_knows_end or self._answered >= report.number:
                return True
        if not known:
            self.mark_unreachable(f"no answer within {timeout:g} s from the Wattwise server at {self._address}")
        return False

    def carry_on(self, measured: v1.Measurement) -> None:
        """Adds what the server had to a measurement of a trial that was resumed late."""
        if self._carried is not None:
            carry_on(measured, *self._carried)

    def is_refused(self, epoch: int) -> bool:
        """Returns whether the server has refused the measurement of this epoch."""
        return epoch == self._refused_epoch

    def take_refusal(self) -> WattwiseError | None:
        """Returns the newest refusal of a measurement, once; None if none was refused since the last call."""
        with self.changed:
            refusal, self._refusal = self._refusal, None
            return refusal

    def post(self, result: v1.TrainingResult) -> PendingReport:
        """Adds a measurement, which the journal has, to those that are pending."""
        with self.changed:
            self._posted += 1
            report = PendingReport(self._posted, result)
            self.pending.append(report)
            self.changed.notify_all()
            return report

    def decide(self, own: v1.Decision) -> None:
        """Takes the trainer's own decision, unless the trial is over already."""
        with self.changed:
            if self.progress is Progress.RUNNING:
                self.decision = own
                if own.stop_train:
                    self._note(Event.CLOSED)

    def mark_reported(self, epoch: int) -> None:
        """Notes that the epochs up to this one were reported before the trial went back to an earlier one."""
        with self.changed:
            self.reported_epoch = max(self.reported_epoch, epoch)

    def resume(self, trial: v1.Trial) -> None:
        """Carries on the sums of a trial that the server has resumed; does not send the epochs that the server has."""
        # A measurement is either in the journal and pending before this, or carries on these sums.
        with self.journal.lock:
            base = self.journal.record.base
            self.journal.carry_on(trial)
            self.mark_reported(trial.newest.epoch)
            with self.changed:
                if base is not None:
                    self._carried = base, trial.newest
                    for place, (number, result) in enumerate(self.pending):
                        # The trainer's thread keeps its own.
                        carried = v1.TrainingResult()
                        carried.CopyFrom(result)
                        carry_on(carried.measurement, *self._carried)
                        self.pending[place] = PendingReport(number, carried)
                while self.pending and self.pending[0].result.measurement.epoch <= trial.newest.epoch:
                    self._acknowledge(self.pending[0])
                self.changed.notify_all()

    @property
    def next_report(self) -> PendingReport | None:
        """The measurement to send next; None if all are acknowledged."""
        with self.changed:
            return self.pending[0] if self.pending else None

    def answer(self, report: PendingReport | None, decision: v1.Decision) -> None:
        """Takes a decision, which answers no report if it is a heartbeat's or a pushed stop.

        Each of its warnings is logged once per trial.
        """
        self.mark_answered()
        for warning in decision.warnings:
            if warning.reason not in self._warned and len(self._warned) < MOST_WARNINGS:
                self._warned.add(warning.reason)
                log.warning("%s", warning.message)
        with self.changed:
            if report is not None:
                self._acknowledge(report)
            self.beat_seconds = heartbeat_seconds(decision)
            if decision.stop_train:
                self._stop(decision, Event.STOPPED)
            elif report is not None and self.progress is Progress.RUNNING:
                self.decision = decision
            self.changed.notify_all()

    def mark_deleted(self, message: str) -> None:
        """Notes that the trial was deleted with its job, which stops the training."""
        self.mark_answered()
        decision = v1.Decision(stop_train=True, end_reason=v1.END_REASON_JOB_DELETED, message=message)
        with self.changed:
            self._stop(decision, Event.DELETED)

    def refuse(self, report: PendingReport, error: WattwiseError) -> None:
        """Takes the refusal of a measurement, which the trainer raises at the end of an epoch."""
        self.mark_answered()
        self.journal.leave_out(report.result.measurement.epoch)
        with self.changed:
            self._acknowledge(report)
            self._refusal, self._refused_epoch = error, report.result.measurement.epoch
            self.changed.notify_all()

    def mark_unreachable(self, cause: str) -> None:
        """Notes that the server is away, and warns once per outage; `cause` names the server and the fault."""
        with self.changed:
            if self.link is not Link.TRACKED or self.done_reporting:
                return
            self._note(Event.UNREACHABLE)
            level = logging.WARNING if self.claim_outage_warning(time.monotonic()) else logging.INFO
        log.log(level, "%s; training continues, and its measurements are kept until the server is back", cause)

    def mark_answered(self) -> None:
        """Notes an answer of the server, and ends the outage that was warned of."""
        with self.changed:
            # Whenever the server is away, it is in an outage; another caller than the session may have noticed one.
            if self._outage_over_at < math.inf:
                return
            self._outage_over_at = time.monotonic()
            self._note(Event.ANSWERED)
        log.info("the Wattwise server at %s is back", self._address)

    def mark_unknown(self) -> None:
        """Notes that the server does not have the trial, or cannot continue it: nothing is sent until it ends."""
        self.mark_answered()
        with self.changed:
            self._note(Event.UNKNOWN)
            self.pending.clear()

    def claim_outage_warning(self, begun_at: float) -> bool:
        """Returns whether the caller should warn of the outage that failed its call: the first caller of each outage.

        A call that began (in monotonic seconds) before an outage ended failed in that outage, which was warned of.
        """
        with self.changed:
            if begun_at < self._outage_over_at:
                return False
            # In a detached trial, no answer would end the outage: every failed call is the first of one.
            if self.link is not Link.DETACHED:
                self._outage_over_at = math.inf
            return True

    def mark_delivered(self) -> None:
        """Notes that nothing is left to deliver of a trial that is over."""
        self._note(Event.DELIVERED)

    def close(self, ending: Ending) -> None:
        """Ends the trial and asks the session's thread to deliver the end; the first reason counts."""
        with self.changed:
            if self.ending is None:
                self.ending, self._owes_ending = ending, True
            self._note(Event.CLOSED)
        self.write_ending()

    def write_ending(self) -> None:
        """Writes into the journal why the trainer ended the trial, once, unless the server knows or a driver writes it.

        A signal handler may have interrupted code that holds the lock of the exchange, while the session's thread has
        the journal and waits for that lock; or code that has the journal. Whoever can take the journal writes.
        """
        ending, journal = self.ending, self.journal
        if ending is None or not self._owes_ending or self.server_knows_end or self.driver_writes_ending:
            return
        if journal.lock.acquire(timeout=_JOURNAL_SECONDS):
            try:
                # Later, another optimizer of this process may continue the trial.
                self._owes_ending = False
                journal.end(ending.reason)
            finally:
                journal.lock.release()

    @property
    def driver_writes_ending(self) -> bool:
        """Whether the driver finds the journal of an undecided trial and ends it, for a reason of its own."""
        decided = self.decision is not None and self.decision.stop_train
        return self.ending is not None and self.ending.by_driver and self.journal.kept and not decided

    def disconnect(self) -> None:
        """Marks the last call of the session's thread."""
        with self.changed:
            self.disconnected = True
            self.changed.notify_all()

    def wait_disconnected(self, timeout: float) -> bool:
        """Waits up to `timeout` seconds for `disconnect`; returns whether it was called."""
        with self.changed:
            return self.changed.wait_for(lambda: self.disconnected, timeout)

    @property
    def _awaits_answers(self) -> bool:
        return self.link is Link.TRACKED and not (self.done_reporting or self.disconnected)

    def _note(self, event: Event) -> None:
        with self.changed:
            self.state = self.state.after(event)
            self.changed.notify_all()

    def _stop(self, decision: v1.Decision, event: Event) -> None:
        if not self.server_knows_end:
            self.decision = decision
        self._note(event)

    def _acknowledge(self, report: PendingReport) -> None:
        self._answered = max(self._answered, report.number)
        while self.pending and self.pending[0].number <= report.number:
            self.pending.popleft()
