"""A running trial's session with the server, which may go away and come back without disturbing the training."""

from __future__ import annotations

import functools
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
from wattwise.training.delivery import REFUSALS, deliver_record, was_deleted
from wattwise.training.exchange import Ending, Exchange, PendingReport
from wattwise.training.journal import Journal
from wattwise.training.stream import ResultStream

BEATS_PER_LEASE = 3

_LONGEST_PAUSE = 5.0
_LONGEST_STREAM_PAUSE = 60.0


class Session:
    """Reports a trial's measurements and renews its lease.

    A daemon thread makes all calls: over a stream if possible, otherwise by single calls, and with growing pauses while
    the server is away. Everything is in the journal before it is sent; what the server does not know when the process
    ends stays there. A trial that the server does not have is imported once it is over.

    Args:
        address: host and port of the server.
        trial: the trial; with number 0 the server has not dispatched it.
        journal: the trial's journal.
        lease_seconds: the trial's lease; 0 never expires.
        timeout: seconds that a report waits for its answer, and that a single call may take.
        credentials: the token and the certificates; None reads the `WATTWISE_*` variables.
        request_id: the name of the calls in the server's log and in errors; None gives each call its own.
        ends_completed: whether `close` ends an undecided trial as completed; False leaves that to a driver.
        away: whether the server was away when the trial started, which was warned of.
        resumes: whether the server has to be asked to resume the trial before it is reported.
    """

    def __init__(
        self,
        address: str,
        trial: v1.TrialId,
        journal: Journal,
        *,
        lease_seconds: float,
        timeout: float = 10.0,
        credentials: Credentials | None = None,
        request_id: str | None = None,
        ends_completed: bool = True,
        away: bool = False,
        resumes: bool = False,
    ) -> None:
        self._trial = trial
        self._journal = journal
        self._timeout = timeout
        self._ends_completed = ends_completed
        self._beat_seconds = lease_seconds / BEATS_PER_LEASE if lease_seconds > 0 else math.inf
        self._pid = os.getpid()
        self._exchange = Exchange(address, lambda result: journal.leave_out(result.current_epoch))
        if not trial.trial_number:
            self._exchange.detach()
        elif away:
            self._exchange.begin_away()
        self._resumes = resumes
        self._decided = False
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

    def catch_up(self, reported: int, trained: int) -> None:
        """Sends what an earlier process of the trial could not deliver; called before `start`.

        Args:
            reported: the last epoch that the server has.
            trained: the last epoch of the checkpoint; later ones are trained again.
        """
        if self._exchange.detached:
            return
        for result, _ in self._journal.record.results:
            if reported < result.current_epoch <= trained:
                again = v1.TrainingResult(trial=self._trial)
                again.MergeFrom(result)
                self._exchange.post(again)

    def start(self) -> None:
        """Starts the session's thread."""
        self._thread.start()

    def report(self, result: v1.TrainingResult) -> v1.Decision | None:
        """Reports the measurement of an epoch and returns the decision; None if the server is away.

        While the server is known to be away this returns at once; the measurements are sent when it is back.

        Raises:
            InvalidResultError: if the server refused this measurement, or one that was kept while it was away.
        """
        if not self.over:
            self._journal.add(result)
        if self._exchange.detached:
            return None
        return self._exchange.answer_to(self._exchange.post(result), self._timeout)

    def decide(self) -> None:
        """Notes that the trainer has decided the trial: one that the server does not have can be imported now."""
        with self._exchange.changed:
            self._decided = True
            self._exchange.changed.notify_all()

    def close(self, reason: v1.EndReason.ValueType, timeout: float = 5.0) -> None:
        """Delivers what is pending, ends the trial unless it is decided, and stops; may be called repeatedly.

        What cannot be delivered in time stays in the journal.

        Safe in a signal handler, because the session's thread makes the calls. Does nothing in a forked process.

        Args:
            reason: why the trial ends.
            timeout: seconds to wait at most.
        """
        if os.getpid() != self._pid or not self._thread.is_alive():
            return
        if not self._exchange.stopped:
            self._journal.end(reason)
        self._exchange.end(Ending(reason, time.monotonic() + timeout))
        self._exchange.wait_finished(timeout)

    def _run(self) -> None:
        try:
            while not self._exchange.over:
                if self._exchange.detached:
                    if self._decided and self._imported():
                        return
                else:
                    self._stream()
                    self._call()
                self._rest()
            self._end()
        except Exception:  # noqa: BLE001 - no failure in here may disturb the training
            log.exception("the trial is no longer reported: this is a bug in wattwise")
        finally:
            self._client.close()
            if self._exchange.stopped:
                self._journal.delete()
            self._journal.release()
            self._exchange.finish()

    def _stream(self) -> None:
        """Serves a stream until it breaks, if one is due and the server is there."""
        if self._exchange.away or self._resumes or time.monotonic() < self._stream_at:
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
        report = self._exchange.next_report
        try:
            self._exchange.answer(report, self._send(report, self._timeout))
        except (JobNotFoundError, TrialNotFoundError) as error:
            self._detach(error)
        except WattwiseError as error:
            if report is not None and isinstance(error, InvalidResultError | InvalidRequestError):
                self._exchange.refuse(report, error)
            else:
                self._exchange.lost(str(error))

    def _send(self, report: PendingReport | None, timeout: float) -> v1.Decision:
        if self._resumes:
            request_id = self._journal.record.request_id
            answer = self._client.get_next_batch_size(
                self._trial.job_id, request_id=request_id, resume=True, timeout=timeout
            )
            self._resumes = False
            self._exchange.skip(answer.trial.last_epoch)
            if report is not None and report.result.current_epoch <= answer.trial.last_epoch:
                report = None
        if report is None:
            return self._client.heartbeat(self._trial, timeout=timeout)
        return self._client.report_result(report.result, timeout=timeout)

    def _detach(self, error: WattwiseError) -> None:
        """Goes on without the server: its database was lost, or is an older one."""
        log.warning(
            "the Wattwise server no longer has trial %d of job %r: was its database lost or restored? (%s) Training "
            "continues; when it ends, the job is registered again if need be, and the whole trial is delivered",
            *(self._trial.trial_number, self._trial.job_id, error),
        )
        self._exchange.detach()

    def _imported(self) -> bool:
        """Delivers a trial that is over and that the server does not have; returns whether the server has answered."""
        self._journal.end(v1.END_REASON_COMPLETED)
        try:
            self._import(self._timeout)
        except REFUSALS:
            return True
        except WattwiseError as error:
            log.debug("trial not delivered yet: %s", error)
            return False
        return True

    def _import(self, timeout: float) -> None:
        """Delivers the whole trial.

        Raises:
            WattwiseError: if it cannot be delivered.
        """
        try:
            trial = deliver_record(self._client, self._journal.record, timeout)
        except REFUSALS as error:
            self._journal.refuse(str(error))
            log.warning("the server refused this trial: %s%s", error, self._where("`wattwise spool send` tries again"))
            raise
        if trial is not None:
            log.info("the server has this trial as trial %d of job %r", trial.id.trial_number, trial.id.job_id)
        self._journal.delete()

    def _where(self, remedy: str) -> str:
        """Where an undelivered trial is kept, and what delivers it."""
        return f"; it is kept in {self._journal.path}, and {remedy}" if self._journal.kept else ""

    def _rest(self) -> None:
        """Waits until a report or heartbeat is due; while the server is away, until the next attempt."""
        exchange = self._exchange
        with exchange.changed:
            if exchange.away:
                if exchange.detached and not self._decided:
                    exchange.changed.wait_for(lambda: exchange.over or self._decided)
                else:
                    exchange.changed.wait_for(lambda: exchange.over, next(self._attempt_pauses))
                return
            self._attempt_pauses = pauses(0.5, _LONGEST_PAUSE)
            until_next = min(self._beat_seconds, self._stream_at - time.monotonic(), threading.TIMEOUT_MAX)
            exchange.changed.wait_for(lambda: exchange.over or bool(exchange.pending), max(until_next, 0))

    def _end(self) -> None:
        """Delivers what is pending and ends the trial, unless it is decided."""
        ending = self._exchange.ending
        if ending is None:
            return
        driver_ends = ending.reason == v1.END_REASON_COMPLETED and not self._ends_completed
        try:
            if not self._exchange.detached:
                self._finish(ending, driver_ends=driver_ends)
            if self._exchange.detached:
                retrying(self._import, _left(ending))
        except REFUSALS as error:
            log.debug("trial not delivered: %s", error)
        except WattwiseError as error:
            # An outage was warned of before.
            quiet = self._exchange.away and self._journal.kept and not driver_ends
            number = self._trial.trial_number
            log.log(
                logging.INFO if quiet else logging.WARNING,
                "the end of trial %d was not delivered: %s%s",
                *(number, error, self._where("the next launch of the job or `wattwise spool send` delivers it")),
            )

    def _finish(self, ending: Ending, *, driver_ends: bool) -> None:
        try:
            self._flush(ending)
            if not (driver_ends or self._exchange.stopped):
                retrying(lambda left: self._client.end_trial(self._trial, ending.reason, timeout=left), _left(ending))
        except (JobNotFoundError, TrialNotFoundError) as error:
            if not was_deleted(self._client, self._trial, _left(ending)):
                self._detach(error)
                return
        self._journal.delete()

    def _flush(self, ending: Ending) -> None:
        while not self._exchange.stopped and (report := self._exchange.next_report) is not None:
            try:
                decision = retrying(functools.partial(self._send, report), _left(ending))
            except (InvalidResultError, InvalidRequestError) as error:  # noqa: PERF203 - each iteration is a call
                log.warning("the server refused the measurement of epoch %d: %s", report.result.current_epoch, error)
                self._exchange.refuse(report, error)
            else:
                self._exchange.answer(report, decision)


def _left(ending: Ending) -> float:
    return max(0.0, ending.deadline - time.monotonic())
