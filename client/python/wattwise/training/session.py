"""A running trial's session with the server, which may go away and come back without disturbing the training."""

from __future__ import annotations

import logging
import math
import os
import threading
import time

from wattwise import v1
from wattwise.errors import (
    InvalidRequestError,
    InvalidResultError,
    JobNotFoundError,
    TrialNotFoundError,
    UnsupportedCallError,
    WattwiseError,
    log,
)
from wattwise.rpc.backoff import pauses, retrying
from wattwise.rpc.client import Client
from wattwise.rpc.credentials import Credentials
from wattwise.training.exchange import Ending, Exchange, PendingReport
from wattwise.training.stream import ResultStream

BEATS_PER_LEASE = 3

_LONGEST_PAUSE = 5.0
_LONGEST_STREAM_PAUSE = 60.0


class Session:
    """Reports a trial's measurements and renews its lease.

    A daemon thread makes all calls: over a stream if possible, otherwise by single calls, and with growing pauses while
    the server is away.

    Args:
        address: host and port of the server.
        trial: the trial.
        lease_seconds: the trial's lease; 0 never expires.
        timeout: seconds that a report waits for its answer, and that a single call may take.
        credentials: the token and the certificates; None reads the `WATTWISE_*` variables.
        request_id: the name of the calls in the server's log and in errors; None gives each call its own.
        ends_completed: whether `close` ends an undecided trial as completed; False leaves that to a driver.
    """

    def __init__(
        self,
        address: str,
        trial: v1.TrialId,
        *,
        lease_seconds: float,
        timeout: float = 10.0,
        credentials: Credentials | None = None,
        request_id: str | None = None,
        ends_completed: bool = True,
    ) -> None:
        self._trial = trial
        self._timeout = timeout
        self._ends_completed = ends_completed
        self._beat_seconds = lease_seconds / BEATS_PER_LEASE if lease_seconds > 0 else math.inf
        self._pid = os.getpid()
        self._exchange = Exchange(address)
        # Used by the session's thread only: a signal must not find the trainer's thread holding a lock of its channel.
        self._client = Client(address, timeout=timeout, retry=False, credentials=credentials, request_id=request_id)
        self._attempt_pauses = pauses(0.5, _LONGEST_PAUSE)
        self._stream_pauses = pauses(0.5, _LONGEST_STREAM_PAUSE)
        self._stream_at = 0.0
        self._thread = threading.Thread(target=self._run, name="wattwise-session", daemon=True)

    @property
    def over(self) -> bool:
        """Whether the trial is over: decided, deleted, or ended by this trainer."""
        return self._exchange.over

    @property
    def stopped(self) -> bool:
        """Whether the server has said that the trial is over."""
        return self._exchange.stopped

    @property
    def decision(self) -> v1.Decision | None:
        """The server's newest decision; None before the first."""
        return self._exchange.decision

    def claim_outage_warning(self, begun_at: float) -> bool:
        """See `Exchange.claim_outage_warning`."""
        return self._exchange.claim_outage_warning(begun_at)

    def start(self) -> None:
        """Starts the session's thread."""
        self._thread.start()

    def report(self, result: v1.TrainingResult) -> v1.Decision | None:
        """Reports the measurement of an epoch and returns the decision; None if the server is away.

        While the server is known to be away this returns at once; the newest measurement is sent when it is back.

        Raises:
            InvalidResultError: if the server refused this measurement, or one that was kept while it was away.
        """
        return self._exchange.answer_to(self._exchange.post(result), self._timeout)

    def close(self, reason: v1.EndReason.ValueType, timeout: float = 5.0) -> None:
        """Delivers the pending measurement, ends the trial unless it is decided, and stops; may be called repeatedly.

        Safe in a signal handler, because the session's thread makes the calls. Does nothing in a forked process.

        Args:
            reason: why the trial ends.
            timeout: seconds to wait at most.
        """
        if os.getpid() != self._pid or not self._thread.is_alive():
            return
        self._exchange.end(Ending(reason, time.monotonic() + timeout))
        self._exchange.wait_finished(timeout)

    def _run(self) -> None:
        try:
            while not self._exchange.over:
                self._stream()
                self._call()
                self._rest()
            self._end()
        except Exception:  # noqa: BLE001 - no failure in here may disturb the training
            log.exception("the trial is no longer reported: this is a bug in wattwise")
        finally:
            self._client.close()
            self._exchange.finish()

    def _stream(self) -> None:
        """Serves a stream until it breaks, if one is due and the server is there."""
        if self._exchange.away or time.monotonic() < self._stream_at:
            return
        stream = ResultStream(self._exchange, self._trial, self._beat_seconds, 3 * self._timeout)
        try:
            stream.talk(self._client)
        except UnsupportedCallError:
            self._stream_at = math.inf
            return
        except WattwiseError as error:
            # The single call that follows shows whether the server is away or only the stream broke.
            log.debug("result stream broke: %s", error)
        if stream.proven:
            self._stream_pauses = pauses(0.5, _LONGEST_STREAM_PAUSE)
        self._stream_at = time.monotonic() + next(self._stream_pauses)

    def _call(self) -> None:
        """Sends the pending report or a heartbeat as a single call, which shows whether the server is there."""
        if self._exchange.over:
            return
        report = self._exchange.newest
        try:
            self._exchange.answer(report, self._send(report, self._timeout))
        except (JobNotFoundError, TrialNotFoundError) as error:
            self._exchange.answer(report, self._gone(error))
        except WattwiseError as error:
            if report is not None and isinstance(error, InvalidResultError | InvalidRequestError):
                self._exchange.refuse(report, error)
            else:
                self._exchange.lost(str(error))

    def _send(self, report: PendingReport | None, timeout: float) -> v1.Decision:
        if report is None:
            return self._client.heartbeat(self._trial, timeout=timeout)
        return self._client.report_result(report.result, timeout=timeout)

    def _gone(self, error: WattwiseError) -> v1.Decision:
        which = f"trial {self._trial.trial_number} of job {self._trial.job_id!r}"
        advice = "if it was deleted on purpose, do not launch the job again: that would register it again"
        return v1.Decision(stop_train=True, message=f"the server no longer has {which}; {advice} ({error})")

    def _rest(self) -> None:
        """Waits until a report or heartbeat is due; while the server is away, until the next attempt."""
        exchange = self._exchange
        with exchange.changed:
            if exchange.away:
                exchange.changed.wait_for(lambda: exchange.over, next(self._attempt_pauses))
                return
            self._attempt_pauses = pauses(0.5, _LONGEST_PAUSE)
            until_next = min(self._beat_seconds, self._stream_at - time.monotonic(), threading.TIMEOUT_MAX)
            exchange.changed.wait_for(lambda: exchange.over or exchange.newest is not None, max(until_next, 0))

    def _end(self) -> None:
        """Delivers the last measurement and ends the trial, unless it is decided."""
        ending = self._exchange.ending
        if ending is None:
            return
        driver_ends = ending.reason == v1.END_REASON_COMPLETED and not self._ends_completed
        try:
            self._flush(ending)
            if not (driver_ends or self._exchange.stopped):
                retrying(lambda left: self._client.end_trial(self._trial, ending.reason, timeout=left), _left(ending))
        except WattwiseError as error:
            lost = (
                "the last measurement of trial %d was not delivered" if driver_ends else "trial %d could not be ended"
            )
            # An outage was warned of before. Without a driver, the lease ends the trial.
            level = logging.DEBUG if self._exchange.away and not driver_ends else logging.WARNING
            log.log(level, f"{lost}: %s", self._trial.trial_number, error)

    def _flush(self, ending: Ending) -> None:
        report = self._exchange.newest
        if report is None or self._exchange.stopped:
            return
        try:
            decision = retrying(lambda left: self._send(report, left), _left(ending))
        except (InvalidResultError, InvalidRequestError) as error:
            log.warning("the server refused the last measurement: %s", error)
        else:
            self._exchange.answer(report, decision)


def _left(ending: Ending) -> float:
    return max(0.0, ending.deadline - time.monotonic())
