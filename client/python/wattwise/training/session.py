"""A running trial's session with the server, which may go away and come back without disturbing the training."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import threading
import time
from collections.abc import Mapping

from wattwise import v1
from wattwise.errors import (
    JobNotFoundError,
    TrialDeletedError,
    TrialNotFoundError,
    UnsupportedCallError,
    WattwiseError,
    log,
)
from wattwise.rpc.backoff import pauses, retrying
from wattwise.rpc.client import Client
from wattwise.rpc.credentials import Credentials
from wattwise.spec import enum_constant
from wattwise.training.delivery import REFUSALS, REFUSED_REPORTS, deliver_record, find_launch
from wattwise.training.exchange import Ending, Exchange, PendingReport
from wattwise.training.journal import Journal
from wattwise.training.resume import Progress, carry_on, ended_by_trainer, joules_or_none, largest
from wattwise.training.stream import ResultStream
from wattwise.training.trial import StartedTrial

_LONGEST_PAUSE = 5.0
_LEAVE_SECONDS = 1.0
_LONGEST_STREAM_PAUSE = 60.0
_STATUS_AFTER: Mapping[v1.EndReason.ValueType, v1.TrialStatus.ValueType] = {
    v1.END_REASON_TARGET_REACHED: v1.TRIAL_STATUS_DECIDED,
    v1.END_REASON_COST_BOUND: v1.TRIAL_STATUS_DECIDED,
    v1.END_REASON_JOB_DELETED: v1.TRIAL_STATUS_DECIDED,
    v1.END_REASON_STOPPED_EARLY: v1.TRIAL_STATUS_DECIDED,
    v1.END_REASON_COMPLETED: v1.TRIAL_STATUS_FAILED,
    v1.END_REASON_ERROR: v1.TRIAL_STATUS_FAILED,
    v1.END_REASON_OUT_OF_MEMORY: v1.TRIAL_STATUS_FAILED,
    v1.END_REASON_PREEMPTED: v1.TRIAL_STATUS_INTERRUPTED,
    v1.END_REASON_LOST: v1.TRIAL_STATUS_INTERRUPTED,
}
"""The status of a trial by the end reason of its decision.

The server is asked for other trials: those of a reason that it knows alone, and those that ended with their last epoch,
which it may have lost since, such as by a failover to an older database.
"""


class Session:
    """Reports a trial's measurements and renews its lease.

    A daemon thread makes all calls: over a stream if possible, otherwise by single calls, and with growing pauses while
    the server is away. Everything is in the journal before it is sent; what the server does not know when the process
    ends stays there. A trial that the server does not have is imported once it is over.

    Args:
        address: of the server, or of several.
        trial: the trial, whose launch names the calls in the server's log and in errors; with number 0 the server has
            not dispatched it.
        journal: the trial's journal.
        beat_seconds: pause between two heartbeats, until a decision names another one.
        timeout: seconds that a report waits for its answer, and that a single call may take.
        credentials: the token and the certificates; None reads the `WATTWISE_*` variables.
        ends_completed: whether `close` ends an undecided trial as completed; False leaves that to a driver.
        away: whether the server was away when the trial started, which was warned of, or did not know the trial.
        resumes: whether the trial is that of a checkpoint and the server was not asked to resume it, which is done
            before it is reported.
    """

    def __init__(
        self,
        address: str,
        trial: v1.TrialId,
        journal: Journal,
        *,
        beat_seconds: float,
        timeout: float = 10.0,
        credentials: Credentials | None = None,
        ends_completed: bool = True,
        away: bool = False,
        resumes: bool = False,
    ) -> None:
        self._trial = trial
        self._journal = journal
        self._timeout = timeout
        self._ends_completed = ends_completed
        self._pid = os.getpid()
        self._exchange = Exchange(address, lambda result: journal.leave_out(result.measurement.epoch))
        self._exchange.beat_seconds = beat_seconds
        if not trial.trial_number or journal.record.launch_id != trial.launch_id:
            # Not dispatched, or an earlier process has learnt that the trial cannot continue.
            self._exchange.detach()
        elif away:
            self._exchange.begin_away()
        self._resumes = resumes
        self._carrying = threading.RLock()
        # What this process counts on from, and what the server knew, since the server has resumed the trial.
        self._carried: tuple[v1.Measurement, v1.Measurement] | None = None
        self._decided = False
        # The server knows how the trial ended, and every epoch that it may count; or has deleted it.
        self._settled = False
        # Used by the session's thread only: a signal must not find the trainer's thread holding a lock of its channel.
        self._client = Client(address, timeout=timeout, retry=False, credentials=credentials, call_id=trial.launch_id)
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

    def continue_from(self, started: StartedTrial) -> tuple[Progress, v1.Measurement]:
        """Sends what an earlier process of the trial could not deliver; called before `start`.

        Returns:
            Where training starts, with the time and energy of all epochs that the server or the journal has; and the
            sums up to there.
        """
        journal, (epoch, seconds, joules), trial = self._journal, started.progress, started.info.snapshot
        if not self._resumes:
            # An earlier process may have trained without the server.
            journal.carry_on(trial)
        results = [result for result, _ in journal.record.results]
        known = largest(trial.newest, *(result.measurement for result in results[-1:]))
        progress = Progress(epoch, max(seconds, known.time_seconds), max(joules, known.energy_joules))
        base = largest(
            known,
            v1.Measurement(time_seconds=progress.time_seconds, energy_joules=joules_or_none(progress.energy_joules)),
        )
        if self._resumes:
            journal.count_from(base)
        if not self._exchange.detached:
            for result in results:
                if trial.newest.epoch < result.measurement.epoch <= epoch:
                    again = v1.TrainingResult(trial=self._trial)
                    again.MergeFrom(result)
                    carry_on(again.measurement, base, trial.newest)
                    self._exchange.post(again)
        return progress, known

    def start(self) -> None:
        """Starts the session's thread."""
        self._thread.start()

    def report(self, result: v1.TrainingResult) -> v1.Decision | None:
        """Reports the measurement of an epoch and returns the decision; None if the server is away.

        While the server is known to be away this returns at once; the measurements are sent when it is back. The sums
        of a trial that was resumed late are increased to carry on those that the server had.

        Raises:
            InvalidResultError: if the server refused this measurement, or one that was kept while it was away.
        """
        with self._carrying:
            if self._carried is not None:
                carry_on(result.measurement, *self._carried)
            if not self.over:
                self._journal.add(result)
            if self._exchange.detached:
                return None
            report = self._exchange.post(result)
        return self._exchange.answer_to(report, self._timeout)

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
        if self._exchange.wait_finished(timeout):
            # The journal may be locked by the code that a signal handler has interrupted to call this.
            self._thread.join(min(timeout, _LEAVE_SECONDS))

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
            if self._exchange.stopped and not self._settled:
                self._check_stopped()
        except Exception:  # noqa: BLE001 - no failure in here may disturb the training
            log.exception("the trial is no longer reported: this is a bug in wattwise")
        finally:
            self._client.close()
            self._exchange.finish()
            if self._settled:
                self._journal.delete()
            else:
                self._journal.release()

    def _stream(self) -> None:
        """Serves a stream until it breaks, if one is due and the server is there."""
        if self._exchange.away or time.monotonic() < self._stream_at:
            return
        try:
            self._resume(self._timeout)
        except WattwiseError:
            # The single call that follows shows the fault.
            return
        if self._exchange.over or self._exchange.detached:
            return
        patience = self._client.patience
        stream = ResultStream(self._exchange, self._trial, self._timeout, patience)
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
        report = None
        try:
            self._resume(self._timeout)
            if self._exchange.over or self._exchange.detached:
                return
            report = self._exchange.next_report
            self._exchange.answer(report, self._send(report, self._timeout))
        except (JobNotFoundError, TrialNotFoundError) as error:
            self._detach(error)
        except TrialDeletedError as error:
            self._stop_deleted(error)
        except WattwiseError as error:
            if report is not None and isinstance(error, REFUSED_REPORTS) and not error.retryable:
                self._exchange.refuse(report, error)
            else:
                self._exchange.lost(str(error))

    def _resume(self, timeout: float) -> None:
        """Asks the server to resume the trial, if that is still due; what follows carries on the sums that it has.

        Raises:
            JobNotFoundError, TrialNotFoundError: the server does not have the trial.
            TrialDeletedError: the trial was deleted with its job.
            WattwiseError: the server does not answer.
        """
        if not self._resumes:
            return
        # First: since a database was restored, the launch may have another trial than the one that is reported.
        self._client.heartbeat(self._trial, timeout=timeout)
        launch_id = self._journal.record.launch_id
        answer = self._client.get_next_batch_size(self._trial.job_id, launch_id=launch_id, resume=True, timeout=timeout)
        self._resumes, trial = False, answer.trial
        if ended_by_trainer(trial):
            log.warning(
                "trial %d of job %r of the checkpoint was ended by its trainer (%s) before: what is trained now is "
                "delivered at its end, as another trial",
                *(trial.id.trial_number, trial.id.job_id, enum_constant(v1.EndReason, trial.end_reason)),
            )
            self._journal.carry_on(trial)
            self._exchange.detach()
        else:
            with self._carrying:
                base = self._journal.record.base
                self._journal.carry_on(trial)
                if base is not None:
                    self._carried = base, trial.newest
                    self._exchange.change(lambda result: carry_on(result.measurement, base, trial.newest))
                self._exchange.skip(trial.newest.epoch)

    def _send(self, report: PendingReport | None, timeout: float) -> v1.Decision:
        if report is None:
            return self._client.heartbeat(self._trial, timeout=timeout)
        return self._client.report_result(report.result, timeout=timeout)

    def _detach(self, cause: object) -> None:
        """Goes on without the server: its database was lost, or is an older one."""
        log.warning(
            "the Wattwise server no longer has trial %d of job %r: was its database lost or restored? (%s) When "
            "the training ends, the job is registered again if need be, and the whole trial is delivered",
            *(self._trial.trial_number, self._trial.job_id, cause),
        )
        self._exchange.detach()

    def _stop_deleted(self, cause: TrialDeletedError) -> None:
        """Stops the training: the trial was deleted with its job, which settles it."""
        self._settled = True
        self._exchange.answer(
            None, v1.Decision(stop_train=True, end_reason=v1.END_REASON_JOB_DELETED, message=str(cause))
        )

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
        self._settled = True

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
            until_next = min(exchange.beat_seconds, self._stream_at - time.monotonic(), threading.TIMEOUT_MAX)
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
        if self._exchange.stopped:
            return
        if driver_ends and not self._exchange.pending:
            # Nothing is left to send: no server that is away is waited for.
            with contextlib.suppress(WattwiseError):
                if not self._exchange.away:
                    self._check_known(_left(ending))
            self._settled = not self._exchange.detached
            return
        try:
            trial = retrying(lambda _: self._delivered(ending, driver_ends=driver_ends), _left(ending))
        except (JobNotFoundError, TrialNotFoundError) as error:
            self._detach(error)
            return
        except TrialDeletedError as error:
            self._stop_deleted(error)
            return
        if trial is not None:
            self._settle(trial.status, trial.end_reason, trial.newest.epoch, _left(ending))

    def _delivered(self, ending: Ending, *, driver_ends: bool) -> v1.Trial | None:
        """Sends what is pending and ends the trial; None if it is over, or not the server's."""
        self._resume(_left(ending))
        self._flush(ending)
        if self._exchange.stopped or self._exchange.detached:
            return None
        if driver_ends:
            self._settled = True
            return None
        return self._client.end_trial(self._trial, ending.reason, timeout=_left(ending))

    def _check_known(self, timeout: float) -> None:
        """Asks whether the server has the trial.

        Raises:
            WattwiseError: if the server does not answer.
        """
        try:
            self._exchange.answer(None, self._client.heartbeat(self._trial, timeout=timeout))
        except (JobNotFoundError, TrialNotFoundError) as error:
            self._detach(error)

    def _settle(
        self, status: v1.TrialStatus.ValueType, reason: v1.EndReason.ValueType, last_epoch: int, timeout: float
    ) -> None:
        """Delivers what the server lacks of a trial that has ended and that may still gain it.

        Args:
            status: the status of the server's trial.
            reason: why the server's trial has ended.
            last_epoch: the newest epoch that the server has of it.
            timeout: seconds.

        Raises:
            WattwiseError: if it cannot be delivered.
        """
        measured = [result.measurement.epoch for result, _ in self._journal.record.results]
        if status == v1.TRIAL_STATUS_INTERRUPTED and measured and measured[-1] > last_epoch:
            # A journal has no unknown reason: the trial is delivered as lost, which counts alike.
            if not self._journal.record.end_reason and reason in v1.EndReason.values():
                self._journal.end(reason)
            self._import(timeout)
        else:
            self._settled = True

    def _check_stopped(self) -> None:
        """Settles a trial that the server has stopped: another process may have ended it, rather than a decision."""
        decision = self._exchange.decision or v1.Decision()
        reason, last_epoch = decision.end_reason, decision.last_epoch
        status = _STATUS_AFTER.get(reason)
        try:
            if status is None:
                found = find_launch(self._client, self._journal.record.trial_id, self._timeout)
                if found is None:
                    self._detach("it does not know the launch")
                    self._import(self._timeout)
                    return
                status, last_epoch = found.status, found.newest.epoch
            if self._journal.record.spare_id and status != v1.TRIAL_STATUS_DECIDED:
                # It is not known yet of which trial this is: the delivery finds out.
                return
            self._settle(status, reason, last_epoch, self._timeout)
        except TrialDeletedError:
            self._settled = True
        except WattwiseError as error:
            log.debug("the rest of the trial is not delivered: %s", error)

    def _flush(self, ending: Ending) -> None:
        """Sends what is pending."""
        while not (self._exchange.stopped or self._exchange.detached):
            if (report := self._exchange.next_report) is None:
                return
            try:
                decision = self._send(report, _left(ending))
            except REFUSED_REPORTS as error:
                if error.retryable:
                    raise
                log.warning(
                    "the server refused the measurement of epoch %d: %s", report.result.measurement.epoch, error
                )
                self._exchange.refuse(report, error)
            else:
                self._exchange.answer(report, decision)


def _left(ending: Ending) -> float:
    return max(0.0, ending.deadline - time.monotonic())
