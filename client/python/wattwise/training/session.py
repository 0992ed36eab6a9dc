"""A running trial's session with the server, which may go away and come back without disturbing the training."""

from __future__ import annotations

import contextlib
import logging
import math
import threading
import time

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
from wattwise.rules import STATUS_AFTER, EndReason
from wattwise.spec import enum_name, enum_value
from wattwise.training.delivery import REFUSALS, deliver_record, find_launch, is_refusal
from wattwise.training.exchange import Ending, Exchange, PendingReport
from wattwise.training.journal import Journal
from wattwise.training.resume import Sums, carry_on, ended_by_trainer, joules_or_none, largest
from wattwise.training.start import StartedTrial
from wattwise.training.state import Link, Progress
from wattwise.training.stream import ResultStream
from wattwise.training.trial import trial_name

_LONGEST_PAUSE = 5.0
_LEAVE_SECONDS = 1.0
_LONGEST_STREAM_PAUSE = 60.0
_STATUS_AFTER = {
    enum_value(v1.EndReason, reason): v1.TrialStatus.Value(f"TRIAL_STATUS_{status.value}")
    for reason, status in STATUS_AFTER.items()
    # The server may have lost a trial that ended with its last epoch, such as by a failover to an older database.
    if reason is not EndReason.MAX_EPOCHS
}
"""The status of a trial by the end reason of its decision; for any other reason, the server is asked."""


class Session:
    """Reports a trial's measurements and renews its lease.

    A daemon thread makes all calls: over a stream if possible, otherwise by single calls, and with growing pauses while
    the server is away. Everything is in the journal before it is sent; what the server does not know when the process
    ends stays there. A trial that the server does not have is imported once it is over.

    Args:
        client: calls the server; the session closes it. Only the session's thread may use it from then on: a signal
            must not find the trainer's thread holding a lock of its channel.
        trial: the trial, whose launch names the calls in the server's log and in errors.
        journal: the trial's journal.
        beat_seconds: pause between two heartbeats, until a decision names another one.
        timeout: seconds that a single call may take.
        ends_completed: whether `close` ends an undecided trial as completed; False leaves that to a driver.
        link: the link to the server at the start.

    Attributes:
        exchange: what the session and the trainer's thread share.
    """

    def __init__(
        self,
        client: Client,
        trial: v1.TrialId,
        journal: Journal,
        *,
        beat_seconds: float,
        timeout: float = 10.0,
        ends_completed: bool = True,
        link: Link = Link.TRACKED,
    ) -> None:
        if journal.record.launch_id != trial.launch_id:
            # An earlier process has learnt that the trial cannot continue.
            link = Link.DETACHED
        self.exchange = Exchange(client.address, journal, link)
        self.exchange.beat_seconds = beat_seconds
        self._trial = trial
        self._name = trial_name(trial.job_id, trial.trial_number)
        self._timeout = timeout
        self._ends_completed = ends_completed
        self._client = client.without_retries(timeout, trial.launch_id)
        self._attempt_pauses = pauses(0.5, _LONGEST_PAUSE)
        self._stream_pauses = pauses(0.5, _LONGEST_STREAM_PAUSE)
        self._stream_at = 0.0
        self._thread = threading.Thread(target=self._run, name="wattwise-session", daemon=True)

    def start(self, started: StartedTrial) -> tuple[Sums, v1.Measurement]:
        """Starts the thread, which first sends what an earlier process of the trial could not deliver.

        Returns:
            Where training starts, with the time and energy of all epochs that the server or the journal has; and the
            sums up to there.
        """
        journal, (epoch, seconds, joules), trial = self.exchange.journal, started.sums, started.info.snapshot
        if not started.how.counts_alone:
            # An earlier process may have trained without the server.
            journal.carry_on(trial)
        results = [result for result, _ in journal.record.results]
        known = largest(trial.newest, *(result.measurement for result in results[-1:]))
        sums = Sums(epoch, max(seconds, known.time_seconds), max(joules, known.energy_joules))
        base = largest(
            known,
            v1.Measurement(time_seconds=sums.time_seconds, energy_joules=joules_or_none(sums.energy_joules)),
        )
        if started.how.counts_alone:
            journal.count_from(base)
        self.exchange.mark_reported(max(trial.newest.epoch, epoch))
        if self.exchange.link is not Link.DETACHED:
            for result in results:
                if trial.newest.epoch < result.measurement.epoch <= epoch:
                    again = v1.TrainingResult(trial=self._trial)
                    again.MergeFrom(result)
                    carry_on(again.measurement, base, trial.newest)
                    self.exchange.post(again)
        self._thread.start()
        return sums, known

    def close(self, reason: v1.EndReason.ValueType, timeout: float = 5.0) -> None:
        """Delivers what is pending, ends the trial unless it is decided, and stops; may be called repeatedly.

        What cannot be delivered in time stays in the journal.

        Safe in a signal handler, because the session's thread makes the calls. Does nothing in a forked process, which
        has no such thread.

        Args:
            reason: why the trial ends.
            timeout: seconds to wait at most.
        """
        if not self._thread.is_alive():
            return
        by_driver = reason == v1.END_REASON_COMPLETED and not self._ends_completed
        self.exchange.close(Ending(reason, time.monotonic() + timeout, by_driver))
        if self.exchange.wait_disconnected(timeout):
            # The journal may be locked by the code that a signal handler has interrupted to call this.
            self._thread.join(min(timeout, _LEAVE_SECONDS))

    def _run(self) -> None:
        exchange = self.exchange
        try:
            while not exchange.done_reporting:
                if exchange.link is not Link.DETACHED:
                    self._stream()
                    self._call()
                elif exchange.progress is Progress.ENDED and self._try_import():
                    return
                self._rest()
            # Does nothing if the server has ended the trial before its trainer did.
            self._end()
            if exchange.progress is Progress.DECIDED:
                self._settle_decided()
        except Exception:  # noqa: BLE001 - no failure in here may disturb the training
            log.exception("the trial is no longer reported: this is a bug in wattwise")
        finally:
            self._client.close()
            exchange.disconnect()
            if exchange.progress is Progress.SETTLED:
                self.exchange.journal.delete()
            else:
                self.exchange.journal.release()

    def _stream(self) -> None:
        """Serves a stream until it breaks, if one is due and the server is there."""
        link = self.exchange.link
        if link is not Link.TRACKED or time.monotonic() < self._stream_at:
            return
        try:
            self._resume(self._timeout)
        except WattwiseError:
            # The single call that follows shows the fault.
            return
        if self.exchange.done_reporting or self.exchange.link is Link.DETACHED:
            return
        stream = ResultStream(self.exchange, self._trial, self._timeout, self._client.patience)
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
        exchange = self.exchange
        if exchange.done_reporting:
            return
        report = None
        try:
            self._resume(self._timeout)
            if exchange.done_reporting or exchange.link is Link.DETACHED:
                return
            report = exchange.next_report
            exchange.answer(report, self._send(report, self._timeout))
        except (JobNotFoundError, TrialNotFoundError) as error:
            self._detach(error)
        except TrialDeletedError as error:
            exchange.mark_deleted(str(error))
        except WattwiseError as error:
            if report is not None and is_refusal(error):
                exchange.refuse(report, error)
            else:
                exchange.mark_unreachable(error.problem)

    def _resume(self, timeout: float) -> None:
        """Asks for what the server has of a trial that this process counts on without it, if that is still due.

        The server resumes the trial of a checkpoint; that of a driver stays ended if it has ended.

        Raises:
            JobNotFoundError, TrialNotFoundError: the server does not have the trial.
            TrialDeletedError: the trial was deleted with its job.
            WattwiseError: the server does not answer.
        """
        if self.exchange.journal.record.base is None:
            return
        # First: since a database was restored, the launch may have another trial than the one that is reported.
        self._client.heartbeat(self._trial, timeout=timeout)
        launch_id = self.exchange.journal.record.launch_id
        if not self._ends_completed:
            self.exchange.resume(self._client.lookup_trial(self._trial.job_id, launch_id, timeout=timeout))
            return
        answer = self._client.get_next_batch_size(self._trial.job_id, launch_id=launch_id, resume=True, timeout=timeout)
        trial = answer.trial
        if ended_by_trainer(trial):
            log.warning(
                "%s of the checkpoint was ended by its trainer (%s) before: what is trained now is "
                "delivered at its end, as another trial",
                *(self._name, enum_name(v1.EndReason, trial.end_reason)),
            )
            self.exchange.journal.carry_on(trial)
            self.exchange.mark_unknown()
        else:
            self.exchange.resume(trial)

    def _send(self, report: PendingReport | None, timeout: float) -> v1.Decision:
        if report is None:
            return self._client.heartbeat(self._trial, timeout=timeout)
        return self._client.report_result(report.result, timeout=timeout)

    def _detach(self, cause: object) -> None:
        """Goes on without the server: its database was lost, or is an older one."""
        self.exchange.mark_unknown()
        log.warning(
            "the Wattwise server no longer has %s: was its database lost or restored? (%s) When the training ends, the "
            "job is registered again if need be, and the whole trial is delivered",
            *(self._name, cause),
        )

    def _try_import(self) -> bool:
        """Delivers a trial that is over and that the server does not have; returns whether the server has answered."""
        self.exchange.journal.end(v1.END_REASON_COMPLETED)
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
            trial = deliver_record(self._client, self.exchange.journal.record, timeout)
        except REFUSALS as error:
            self.exchange.journal.refuse(str(error))
            log.warning("the server refused this trial: %s%s", error, self._where("`wattwise spool send` tries again"))
            raise
        if trial is not None:
            log.info("the server has this trial as trial %d of job %r", trial.id.trial_number, trial.id.job_id)
        self.exchange.mark_delivered()

    def _where(self, remedy: str) -> str:
        """Returns where an undelivered trial is kept, and what delivers it."""
        return f"; it is kept in {self.exchange.journal.path}, and {remedy}" if self.exchange.journal.kept else ""

    def _rest(self) -> None:
        """Waits until a report or heartbeat is due; while the server is away, until the next attempt."""
        exchange = self.exchange
        with exchange.changed:
            if exchange.link is Link.DETACHED and exchange.progress is Progress.RUNNING:
                exchange.changed.wait_for(lambda: exchange.progress is not Progress.RUNNING)
            elif exchange.link is not Link.TRACKED:
                exchange.changed.wait_for(lambda: exchange.done_reporting, next(self._attempt_pauses))
            else:
                self._attempt_pauses = pauses(0.5, _LONGEST_PAUSE)
                until_next = min(exchange.beat_seconds, self._stream_at - time.monotonic(), threading.TIMEOUT_MAX)
                exchange.changed.wait_for(lambda: exchange.done_reporting or bool(exchange.pending), max(until_next, 0))

    def _end(self) -> None:
        """Delivers what is pending and ends the trial, unless it is decided."""
        ending = self.exchange.ending
        if ending is None:
            return
        self.exchange.write_ending()
        try:
            if self.exchange.link is not Link.DETACHED:
                self._end_on_server(ending)
            if self.exchange.link is Link.DETACHED and not self.exchange.driver_writes_ending:
                retrying(self._import, _left(ending))
        except REFUSALS as error:
            log.debug("trial not delivered: %s", error)
        except WattwiseError as error:
            # An outage was warned of before.
            quiet = self.exchange.link is not Link.TRACKED and self.exchange.journal.kept and not ending.by_driver
            log.log(
                logging.INFO if quiet else logging.WARNING,
                "the end of %s was not delivered: %s%s",
                *(self._name, error, self._where("the next launch of the job or `wattwise spool send` delivers it")),
            )

    def _end_on_server(self, ending: Ending) -> None:
        if self.exchange.server_knows_end:
            return
        if ending.by_driver and not self.exchange.pending:
            # Nothing is left to send: no server that is away is waited for.
            with contextlib.suppress(WattwiseError):
                if self.exchange.link is Link.TRACKED:
                    self._check_known(_left(ending))
            if self.exchange.link is not Link.DETACHED:
                self.exchange.mark_delivered()
            return
        try:
            trial = retrying(lambda _: self._send_end(ending), _left(ending))
        except (JobNotFoundError, TrialNotFoundError) as error:
            self._detach(error)
            return
        except TrialDeletedError as error:
            self.exchange.mark_deleted(str(error))
            return
        if trial is not None:
            self._deliver_rest(trial.status, trial.end_reason, trial.newest.epoch, _left(ending))

    def _send_end(self, ending: Ending) -> v1.Trial | None:
        """Sends what is pending and ends the trial; None if it is over, or not the server's."""
        self._resume(_left(ending))
        self._flush(ending)
        if self.exchange.server_knows_end or self.exchange.link is Link.DETACHED:
            return None
        if ending.by_driver:
            self.exchange.mark_delivered()
            return None
        return self._client.end_trial(self._trial, ending.reason, timeout=_left(ending))

    def _check_known(self, timeout: float) -> None:
        """Asks whether the server has the trial.

        Raises:
            WattwiseError: if the server does not answer.
        """
        try:
            self.exchange.answer(None, self._client.heartbeat(self._trial, timeout=timeout))
        except (JobNotFoundError, TrialNotFoundError) as error:
            self._detach(error)

    def _deliver_rest(
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
        measured = [result.measurement.epoch for result, _ in self.exchange.journal.record.results]
        if status == v1.TRIAL_STATUS_INTERRUPTED and measured and measured[-1] > last_epoch:
            # A journal has no unknown reason: the trial is delivered as lost, which counts alike.
            if not self.exchange.journal.record.end_reason and reason in v1.EndReason.values():
                self.exchange.journal.end(reason)
            self._import(timeout)
        else:
            self.exchange.mark_delivered()

    def _settle_decided(self) -> None:
        """Settles a trial that the server has ended: another process may have ended it, rather than a decision."""
        decision = self.exchange.decision or v1.Decision()
        reason, last_epoch = decision.end_reason, decision.last_epoch
        status = _STATUS_AFTER.get(reason)
        try:
            if status is None:
                found = find_launch(self._client, self.exchange.journal.record.trial_id, self._timeout)
                if found is None:
                    self._detach("it does not know the launch")
                    self._import(self._timeout)
                    return
                status, last_epoch = found.status, found.newest.epoch
            if self.exchange.journal.record.spare_id and status != v1.TRIAL_STATUS_DECIDED:
                # It is not known yet of which trial this is: the delivery finds out.
                return
            self._deliver_rest(status, reason, last_epoch, self._timeout)
        except TrialDeletedError as error:
            self.exchange.mark_deleted(str(error))
        except WattwiseError as error:
            log.debug("the rest of the trial is not delivered: %s", error)

    def _flush(self, ending: Ending) -> None:
        """Sends what is pending."""
        while not (self.exchange.server_knows_end or self.exchange.link is Link.DETACHED):
            if (report := self.exchange.next_report) is None:
                return
            try:
                decision = self._send(report, _left(ending))
            except WattwiseError as error:
                if not is_refusal(error):
                    raise
                log.warning(
                    "the server refused the measurement of epoch %d: %s", report.result.measurement.epoch, error
                )
                self.exchange.refuse(report, error)
            else:
                self.exchange.answer(report, decision)


def _left(ending: Ending) -> float:
    return max(0.0, ending.deadline - time.monotonic())
