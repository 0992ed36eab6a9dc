"""A trial on one rank, from its start to its end."""

from __future__ import annotations

import math
import os
from dataclasses import replace
from typing import NamedTuple

from wattwise import v1
from wattwise.decision import decision_of
from wattwise.errors import (
    JobNotFoundError,
    OperationOrderError,
    TrainFailError,
    WattwiseError,
    announce,
    log,
)
from wattwise.monitor import Monitor
from wattwise.rpc.answers import shown
from wattwise.rpc.client import Client
from wattwise.spec import enum_name, max_power_watts
from wattwise.training.exchange import Exchange
from wattwise.training.exits import EndActions, ExitGuard
from wattwise.training.launch import Launch
from wattwise.training.metric import MetricReduction, metric_value, reduced
from wattwise.training.own_decision import own_decision
from wattwise.training.power_usage import PowerUsage
from wattwise.training.ranks import Ranks
from wattwise.training.resume import Sums, joules_or_none
from wattwise.training.session import Session
from wattwise.training.start import Start, StartedTrial
from wattwise.training.state import Event, Progress, TrialState
from wattwise.training.windows import TrainingWindows, training_result

_END_SECONDS = 5.0


class _Epoch(NamedTuple):
    """The end of an epoch as rank 0 passes it to all ranks. An epoch whose report was refused is over too.

    Attributes:
        sums: the sums up to the end of the epoch.
        metric: the metric of the epoch.
        state: the state of the trial.
        decision: the newest decision, if there is one.
        refusal: the server's error, if it has refused this report, or an earlier one that was kept while it was away.
    """

    sums: Sums
    metric: float
    state: TrialState
    decision: v1.Decision | None
    refusal: WattwiseError | None

    @property
    def decided_here(self) -> bool:
        """Whether this trainer's own decision has ended the trial."""
        return self.state.progress is Progress.ENDED and self.decision is not None and self.decision.stop_train


class RunningTrial:
    """Measures and reports a trial while it is trained, and ends it.

    Rank 0 measures and talks to the server; the other ranks receive every outcome from it. Every rank watches for the
    end of its own process. The state of the trial is in the `Exchange` of rank 0's session; each rank has the part that
    its training loop has seen: with several ranks, all of them see it in the same call.

    Args:
        launch: opens the connections of the trial.
        started: the trial as rank 0 got it.
        ranks: this process's place among the ranks.
        monitor: the energy monitor; rank 0 has one.
        report_timeout: seconds that a report waits for its answer.

    Attributes:
        info: the trial, its job and this rank.
        started: as given.
        monitor: the energy monitor; None on the ranks that were not given one.
        sums: the last epoch that has ended, with the sums up to its end.
        metric: the metric of that epoch; NaN before the first.
        seen: the state of the trial as the calls of the training loop have seen it; epochs count while it is running.
        begun: whether training has begun.
        end_actions: run as soon as the trial is over or the process ends, before the server is notified.
        power: what the results say about power limits; None if this rank does not report.
        raises_failure: whether a missed target is an error, rather than the reason for another attempt.
    """

    def __init__(
        self,
        launch: Launch,
        started: StartedTrial,
        ranks: Ranks,
        monitor: Monitor | None,
        report_timeout: float,
    ) -> None:
        self.info = replace(started.info, rank=ranks.rank, world_size=ranks.size)
        self.started = started
        self.monitor = monitor
        self.sums = started.sums
        self.metric = math.nan
        self.seen = TrialState(started.how.link)
        self.begun = False
        self.power: PowerUsage | None = None
        self.raises_failure = True
        self._launch = launch
        self._ranks = ranks
        self._pid = os.getpid()
        self._report_timeout = report_timeout
        self._session: Session | None = None
        self._windows: TrainingWindows | None = None
        self.end_actions = EndActions()
        self._guard = ExitGuard(self._end_with_process)
        self._decision = started.decision
        # Why this trainer has ended the trial; None before `close`.
        self._end_reason: v1.EndReason.ValueType | None = None
        # What the user was told already; the optimizer warns of a trial that was decided before.
        self._announced = started.how is Start.OVER
        self._failure_raised = False
        self._nan_warned = False
        self._warned_of_end = False
        if started.how is Start.OVER:
            self.seen, self._end_reason = self.seen._replace(progress=Progress.SETTLED), v1.END_REASON_COMPLETED
            return
        if monitor is not None and ranks.rank == 0:
            self._session = launch.session(started, report_timeout)
            self.sums, known = self._session.start(started)
            self.power = PowerUsage(known, self.sums)
            trial, spec = self.info.id, self.info.job.spec
            name = f"wattwise {trial.job_id} {trial.trial_number}"
            self._windows = TrainingWindows(monitor, name, max_power_watts(spec), weighs_energy=spec.eta_knob > 0)
            _, self._windows.time_seconds, self._windows.energy_joules = self.sums
        self._guard.install()

    @property
    def finished(self) -> bool:
        """Whether training should stop. With several ranks, all of them learn it in the same call."""
        # Otherwise ranks could disagree on when to stop.
        return self._over if self._ranks.size == 1 else self.seen_end

    @property
    def decision(self) -> v1.Decision | None:
        """The newest decision; once the trainer has ended the trial without one, that it is over. None before both."""
        newest, reason = self._newest_decision, self._first_reason
        if reason is None or self._decided or not self.finished:
            return newest
        ended = v1.Decision()
        ended.CopyFrom(newest or ended)
        ended.stop_train, ended.end_reason, ended.message = True, reason, self._undecided_end(reason)
        return ended

    @property
    def _newest_decision(self) -> v1.Decision | None:
        """The newest decision: the server's, or this trainer's own while the server is away; None before the first."""
        if self._session is None or self._ranks.size > 1:
            return self._decision
        return self._session.exchange.decision

    @property
    def seen_end(self) -> bool:
        """Whether a call of the training loop has ended the trial."""
        return self.seen.progress is not Progress.RUNNING

    @property
    def _state(self) -> TrialState:
        """The newest state that this rank knows."""
        return self.seen if self._session is None else self._session.exchange.state

    @property
    def _over(self) -> bool:
        """Whether the trial has ended, as far as this rank knows."""
        return self.seen_end or self._state.progress is not Progress.RUNNING

    @property
    def trains_here(self) -> bool:
        """Whether this process trains the trial, as far as the calls of its training loop show."""
        return not self.seen_end and os.getpid() == self._pid

    @property
    def failure(self) -> TrainFailError | None:
        """The error of a missed target; None if it was reached, the trial goes on, or another attempt follows."""
        finished = self._end_reason in (v1.END_REASON_STOPPED_EARLY, v1.END_REASON_COMPLETED)
        if not self.raises_failure or (self.ended_undecided and not finished):
            return None
        failure = TrainFailError.of(None if self.decision is None else decision_of(self.decision))
        if failure is None or self.started.how is not Start.OVER:
            return failure
        message = (
            f"{self.info.trial.name}, which the checkpoint continues, is over and has not reached its target: "
            f"{self.outcome}; start without the checkpoint for another trial"
        )
        return TrainFailError(message, failure.decision)

    @property
    def ended_undecided(self) -> bool:
        """Whether this trainer has ended the trial without a decision."""
        return self._end_reason is not None and not self._decided

    @property
    def _decided(self) -> bool:
        """Whether a decision has ended the trial."""
        newest = self._newest_decision
        return newest is not None and newest.stop_train

    @property
    def out_of_memory(self) -> bool:
        """Whether the trial was ended because memory ran out."""
        return self._end_reason == v1.END_REASON_OUT_OF_MEMORY

    @property
    def _first_reason(self) -> v1.EndReason.ValueType | None:
        """Why this trainer has ended the trial: a signal may have ended it before its loop did. None while it runs."""
        ending = None if self._session is None else self._session.exchange.ending
        return self._end_reason if ending is None else ending.reason

    @property
    def resumable(self) -> bool:
        """Whether a checkpoint can continue the trial although this trainer has ended it."""
        return self.ended_undecided and self._first_reason == v1.END_REASON_PREEMPTED

    @property
    def outcome(self) -> str:
        """How the trial ended; empty while it runs."""
        return self.decision.message if self.decision is not None and self.decision.stop_train else ""

    def _undecided_end(self, reason: v1.EndReason.ValueType) -> str:
        spec, epoch = self.info.job.spec, self.sums.epoch
        name = f"{self.info.trial.name} with batch size {self.info.batch_size}"
        if not epoch:
            return f"{name} ended without a metric"
        metric = f"metric {self.metric:.6g}, target {spec.target.value:.6g}"
        ended = f"{name} ended undecided after epoch {epoch} of {spec.max_epochs}"
        return f"{ended} ({enum_name(v1.EndReason, reason)}): {metric}"

    def check_process(self, call: str) -> None:
        """Raises OperationOrderError in a forked process; `call` is what the user called."""
        if os.getpid() != self._pid:
            raise OperationOrderError(
                f"{call} was called in a forked process; the trial belongs to process {self._pid}: start processes "
                "that train together with torchrun, or spawn them"
            )

    def open_window(self) -> None:
        """Opens the first measurement window; does nothing once the trial has ended.

        Raises:
            MonitorError: if the energy cannot be measured.
        """
        if not self.seen_end:
            self._ranks.on_first("on_train_begin", self._open_window)
        self.begun = True

    def _open_window(self) -> None:
        _, windows = self._rank_0()
        windows.open()

    def end_epoch(self, metric: float, reduction: MetricReduction) -> None:
        """Ends an epoch of a trial that has not ended: closes the measurement window, reports it, and opens the next.

        Raises:
            TrainFailError: if the trial is over and the target was not reached.
            WattwiseError: as documented at `BatchSizeOptimizer.on_evaluate`.
        """
        if reduction != "first":
            metric = reduced(self._ranks.gather("on_evaluate", lambda: metric_value(metric)), reduction)
        ended = self._ranks.on_first("on_evaluate", lambda: self._measure_epoch(self.sums.epoch + 1, metric))
        self.sums, self.metric = ended.sums, ended.metric
        self._decision = ended.decision or self._decision
        self.seen = ended.state
        if self.seen_end:
            self.announce_decision()
            self.end_actions.run()
            if not ended.decided_here:
                # Otherwise the session stays open to deliver the last report.
                self.close(v1.END_REASON_COMPLETED)
        if ended.refusal is not None:
            raise ended.refusal
        if self.seen_end:
            self._raise_failure()

    def _measure_epoch(self, epoch: int, metric: float) -> _Epoch:
        """Ends an epoch on rank 0, numbered from 1.

        Raises:
            MetricTypeError: if the metric is not a number; the epoch is not over then.
        """
        exchange, windows = self._rank_0()
        value = metric_value(metric)
        self._warn_of_nan(epoch, value)
        windows.close()
        try:
            sums = Sums(epoch, windows.time_seconds, windows.energy_joules)
            result = training_result(self.info.id, sums, value, windows.monitor)
            if self.power is not None:
                self.power.complete(result.measurement)
            self._decide(exchange, result, answered=exchange.report(result, self._report_timeout))
        finally:
            if exchange.progress is Progress.RUNNING:
                windows.reopen()
        sums = Sums(epoch, result.measurement.time_seconds, result.measurement.energy_joules)
        with exchange.changed:
            return _Epoch(sums, value, exchange.state, exchange.decision, exchange.take_refusal())

    def _decide(self, exchange: Exchange, result: v1.TrainingResult, *, answered: bool) -> None:
        """Decides on an epoch if the server does not, or lets the trial go on after its end."""
        epoch = result.measurement.epoch
        if exchange.progress is not Progress.RUNNING or epoch <= exchange.reported_epoch or exchange.is_refused(epoch):
            return
        own = own_decision(self.info.job.spec, result)
        if answered:
            if not own.stop_train:
                return
            log.warning(
                "training stops although the server lets %s continue after epoch %d, in which it %s: a fault",
                *(self.info.trial.name, epoch),
                "reached the target" if own.target_reached else "ended",
            )
        exchange.decide(own)

    def _warn_of_nan(self, epoch: int, value: float) -> None:
        if self._nan_warned or math.isfinite(value):
            return
        self._nan_warned = True
        log.warning(
            "the metric of epoch %d is %s, which counts as target not reached; if training has diverged, "
            "end it (logged once)",
            *(epoch, value),
        )

    def rewind(self, epoch: int) -> None:
        """Goes back to an earlier epoch. Later ones are trained again but not reported again; their cost is added."""
        if self._session is not None:
            self._session.exchange.mark_reported(self.sums.epoch)
        self.sums = self.sums._replace(epoch=min(epoch, self.sums.epoch))

    def measure(self) -> Sums:
        """Returns the last epoch that has ended, with the sums up to now on the rank that measures."""
        if self.seen_end or self._windows is None:
            return self.sums
        exchange, windows = self._rank_0()
        windows.measure()
        measured = v1.Measurement(
            time_seconds=windows.time_seconds, energy_joules=joules_or_none(windows.energy_joules)
        )
        exchange.carry_on(measured)
        return Sums(self.sums.epoch, measured.time_seconds, measured.energy_joules)

    def announce_decision(self) -> None:
        """Logs the decision that ended the trial, once and on rank 0 alone; not if a driver or `attempts` shows it."""
        decision = self._newest_decision
        silent = self._announced or self._ranks.rank or not self._launch.repeatable
        if silent or decision is None or not decision.stop_train:
            return
        if self.raises_failure or decision.target_reached:
            self._announced = True
            announce("%s: %s", self.info.trial.name, decision.message)

    def warn_of_end(self) -> None:
        """Warns once, if the trainer has ended the trial itself, that a metric is not reported any more."""
        if self.ended_undecided and not (self._warned_of_end or self._ranks.rank):
            self._warned_of_end = True
            log.warning("on_evaluate() reports nothing any more: %s", self.outcome)

    def share(self, ranks: Ranks) -> None:
        """Continues as rank 0 of several: a trainer has started the others since the trial began."""
        self._ranks = ranks
        self.info = replace(self.info, rank=ranks.rank, world_size=ranks.size)

    def end_loop(self) -> None:
        """Ends the trial after its last epoch, whether or not a call of the training loop has seen a decision.

        Raises:
            TrainFailError: if the target was not reached, unless that was raised before.
        """
        if not self.seen_end:
            self.close(v1.END_REASON_COMPLETED)
        self._raise_failure()

    def close(self, reason: v1.EndReason.ValueType) -> None:
        """Ends the trial unless it is decided; may be called repeatedly, and does nothing in a forked process."""
        if self._end_reason is not None or os.getpid() != self._pid:
            return
        reason = self._end_reason = self._actual_reason(reason)
        self.seen = self._state.after(Event.CLOSED)
        self._end(reason)
        self._guard.remove()

    def _actual_reason(self, reason: v1.EndReason.ValueType) -> v1.EndReason.ValueType:
        """Returns why a training ends that seems to be completed, with a warning if the trial is undecided."""
        if self.seen_end:
            # What ends the process later, such as the error of a missed target, is not the reason.
            return v1.END_REASON_COMPLETED
        if reason != v1.END_REASON_COMPLETED or self._over:
            return reason
        name, epoch = self.info.trial.name, self.sums.epoch
        warn = log.warning if self._session is not None else log.debug
        if self._guard.interrupted:
            self._announced = True
            warn("Ctrl-C has ended %s after epoch %d: it counts as preempted", name, epoch)
            return v1.END_REASON_PREEMPTED
        if epoch:
            warn(
                "training stops after epoch %d although %s is undecided, which counts as a miss of the target; train "
                "on until bso.training_finished is true, which it is after %d epochs at the latest",
                *(epoch, name, self.info.job.spec.max_epochs),
            )
            return v1.END_REASON_STOPPED_EARLY if self._launch.repeatable else reason
        if not self._launch.repeatable:
            # Under a driver such a trial does not count, and the driver says what to do.
            return reason
        warn(
            "%s ends without a metric and counts as failed, and a batch size that fails three times in a row is set "
            "aside for some trials: call on_evaluate(metric) after every epoch",
            name,
        )
        return reason

    def close_for_another(self, reason: v1.EndReason.ValueType) -> None:
        """Ends the trial unless it is decided, with its window: the process goes on with another trial.

        The caller logs why.
        """
        self._announced = self._announced or reason == v1.END_REASON_PREEMPTED
        self.close(reason)
        if self._windows is not None:
            self._windows.discard()

    def remedy(self) -> str:
        """Returns what to do so that a launch may deliver a model after a miss; all ranks must call it."""
        return self._ranks.on_first("attempts", lambda: self._advice() or self._usual_remedy)

    def _advice(self) -> str:
        """Returns what the server advises; empty if it has no advice."""
        try:
            with self.client(_END_SECONDS) as client:
                return shown(client.get_job(self.info.id.job_id).details.advice)
        except JobNotFoundError:
            # That of a fallback trial may not have been registered yet.
            return "" if self.info.trial.fallback else "the job is no longer on the server"
        except WattwiseError:
            return ""

    @property
    def _usual_remedy(self) -> str:
        if not self._launch.repeatable:
            return "wattwise run starts the next try"
        if self.out_of_memory:
            return "launch the job again: the server chooses a batch size that may fit"
        if self._end_reason == v1.END_REASON_STOPPED_EARLY:
            return (
                "let the training go on until the trial is decided (without early stopping, and with the job's "
                "max_epochs), or launch the job again"
            )
        if self.ended_undecided:
            return "train every epoch of attempt.epochs(), and call on_evaluate(metric) in each"
        return "raise max_tries: the server takes the misses into account"

    def claim_outage_warning(self, begun_at: float) -> bool:
        """Returns what `Exchange.claim_outage_warning` does; without a session, every caller should warn."""
        return self._session is None or self._session.exchange.claim_outage_warning(begun_at)

    def client(self, timeout: float) -> Client:
        """Returns a client for single calls about this trial, which tries an unreachable server only once."""
        return self._launch.client(self.info, timeout, search_timeout=0.0)

    def record_power_limit(self, watts: float) -> None:
        """Records the power limit that the trial trains at: in its results, and in the history of `wattwise run`."""
        if self.power is not None:
            self.power.limit_watts = watts
        self._launch.record_power_limit(watts)

    def _raise_failure(self) -> None:
        failure = self.failure
        if failure is not None and not self._failure_raised:
            self._failure_raised = True
            raise failure

    def _rank_0(self) -> tuple[Exchange, TrainingWindows]:
        if self._session is None or self._windows is None:
            raise OperationOrderError("rank 0 has no trial: call get_batch_size() on every rank")
        return self._session.exchange, self._windows

    def _end_with_process(self, reason: v1.EndReason.ValueType) -> None:
        # A signal may have interrupted `close`.
        self._end(self._end_reason or self._actual_reason(reason))

    def _end(self, reason: v1.EndReason.ValueType) -> None:
        self.announce_decision()
        self.end_actions.run()
        regular = reason in (v1.END_REASON_COMPLETED, v1.END_REASON_STOPPED_EARLY)
        if not regular:
            self._ranks.end()
        if self._session is not None:
            self._session.close(reason, _END_SECONDS)
        elif self._ranks.rank and not (regular or self.info.trial.fallback):
            # Only this rank knows why it failed; rank 0 would give another reason.
            try:
                with self._launch.client(self.info, _END_SECONDS) as client:
                    client.end_trial(self.info.id, reason)
            except WattwiseError as error:
                log.warning("rank %d could not end %s: %s", self.info.rank, self.info.trial.name, error)
        if not (regular or self._decided):
            self._announce_end(reason)

    def _announce_end(self, reason: v1.EndReason.ValueType) -> None:
        """Logs that the trial was preempted or has failed, once and on rank 0 alone; not if a driver shows it.

        In a loop over `attempts`, only that it was preempted: of a failure there is a warning or an exception.
        """
        shown = self._announced or not (self.raises_failure or reason == v1.END_REASON_PREEMPTED)
        if not (shown or self._ranks.rank) and self._launch.repeatable:
            self._announced = True
            epoch, last = self.sums.epoch, self.info.job.spec.max_epochs
            announce(
                "%s ended after epoch %d of %d: %s", self.info.trial.name, epoch, last, enum_name(v1.EndReason, reason)
            )
