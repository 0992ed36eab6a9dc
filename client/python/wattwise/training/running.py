"""A trial on one rank, from its start to its end."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import replace

from wattwise import v1
from wattwise.decision import Decision
from wattwise.errors import JobNotFoundError, OperationOrderError, TrainFailError, WattwiseError, announce, log
from wattwise.monitor import Monitor
from wattwise.rpc.answers import shown
from wattwise.rpc.client import Client
from wattwise.spec import enum_name
from wattwise.training.exits import EndActions, ExitGuard
from wattwise.training.launch import Launch
from wattwise.training.metric import MetricReduction, metric_value, reduced
from wattwise.training.power_usage import PowerUsage
from wattwise.training.ranks import Ranks
from wattwise.training.reporting import Reporter
from wattwise.training.resume import Progress
from wattwise.training.session import Session
from wattwise.training.trial import StartedTrial

_END_SECONDS = 5.0


class RunningTrial:
    """Reports a trial while it is trained, and ends it.

    Rank 0 measures and talks to the server; the other ranks receive every outcome from it. Every rank watches for the
    end of its own process. A `PowerLimitOptimizer` works on `BatchSizeOptimizer.running_trial`.

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
        progress: the last epoch that has ended, with the sums up to its end.
        metric: the metric of that epoch; NaN before the first.
        ended: whether a call of the training loop has ended the trial; epochs no longer count then.
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
        self.progress = started.progress
        self.metric = math.nan
        self._launch = launch
        self._ranks = ranks
        self._pid = os.getpid()
        self._session: Session | None = None
        self._reporter: Reporter | None = None
        self._end_actions = EndActions()
        self._guard = ExitGuard(self._end)
        self._decision = started.decision
        # The server's decision after which this trainer made its own; None if that was the first.
        self._superseded: v1.Decision | None = None
        self.ended = self._closed = started.decision is not None
        self.raises_failure = True
        # The optimizer warns of one that was decided before.
        self._announced = started.decision is not None
        self._failure_raised = False
        self._end_reason: v1.EndReason.ValueType = v1.END_REASON_COMPLETED
        if self._closed:
            self.announce_decision()
            return
        if monitor is not None and ranks.rank == 0:
            self._session = launch.session(self.info, report_timeout)
            self.progress, known = self._session.continue_from(started)
            self._session.start()
            self._reporter = Reporter(self._session, monitor, started.info, self.progress, known)
        self._guard.install()

    @property
    def finished(self) -> bool:
        """Whether training should stop. With several ranks, all of them learn it in the same call."""
        return self.ended or (self._own_session is not None and self._own_session.over)

    @property
    def decision(self) -> v1.Decision | None:
        """The newest decision: the server's, or this trainer's own while the server is away; None before the first."""
        session = self._own_session
        if session is None or (self.ended and not session.stopped):
            return self._decision
        newest = session.decision
        return self._decision if newest is self._superseded and not session.stopped else newest

    @property
    def undecided(self) -> bool:
        """Whether this process trains the trial, as far as its calls show."""
        return not self.ended and os.getpid() == self._pid

    @property
    def stopped_by_server(self) -> bool:
        """Whether the server has said that the trial is over. Known on rank 0 only."""
        return self._session is not None and self._session.stopped

    @property
    def failure(self) -> TrainFailError | None:
        """The error of a missed target; None if it was reached, the trial goes on, or another attempt follows."""
        if not self.raises_failure:
            return None
        if self._end_reason in (v1.END_REASON_STOPPED_EARLY, v1.END_REASON_COMPLETED) and self.ended_undecided:
            message = f"training is over and the target was not reached: {self.outcome}"
            return TrainFailError(message)
        failure = TrainFailError.of(None if self.decision is None else Decision.of(self.decision))
        if failure is None or self.started.decision is None:
            return failure
        message = (
            f"trial {self.info.id.trial_number}, which the checkpoint continues, is over and has not reached its "
            f"target: {self.outcome}; start without the checkpoint for another trial"
        )
        return TrainFailError(message, failure.decision)

    @property
    def ended_undecided(self) -> bool:
        """Whether this trainer has ended the trial without a decision."""
        decided = self.decision is not None and self.decision.stop_train
        return self._closed and not decided

    @property
    def out_of_memory(self) -> bool:
        """Whether the trial was ended because memory ran out."""
        return self._end_reason == v1.END_REASON_OUT_OF_MEMORY

    @property
    def resumable(self) -> bool:
        """Whether a checkpoint can continue the trial although this trainer has ended it."""
        return self.ended_undecided and self._end_reason == v1.END_REASON_PREEMPTED

    @property
    def outcome(self) -> str:
        """How the trial ended."""
        if self.decision is not None and self.decision.stop_train:
            return self.decision.message
        trial, spec, epoch = self.info, self.info.job.spec, self.progress.epoch
        name = f"trial {trial.id.trial_number} with batch size {trial.batch_size}"
        if not epoch:
            return f"{name} ended without a metric"
        reason = enum_name(v1.EndReason, self._end_reason)
        metric = f"metric {self.metric:.6g}, target {spec.target.value:.6g}"
        return f"{name} ended undecided after epoch {epoch} of {spec.max_epochs} ({reason}): {metric}"

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
        if not self.ended:
            self._ranks.on_first("on_train_begin", lambda: self._rank_0().open_window())

    def end_epoch(self, metric: float, reduction: MetricReduction) -> None:
        """Ends an epoch of a trial that has not ended.

        Raises:
            TrainFailError: if the trial is over and the target was not reached.
            WattwiseError: as documented at `BatchSizeOptimizer.on_evaluate`.
        """
        if reduction != "first":
            metric = reduced(self._ranks.gather("on_evaluate", lambda: metric_value(metric)), reduction)
        outcome = self._ranks.on_first("on_evaluate", lambda: self._rank_0().end_epoch(self.progress.epoch + 1, metric))
        self.progress, self.metric = outcome.progress, outcome.metric
        self._decision = outcome.decision or self._decision
        if outcome.own and self._session is not None:
            self._superseded = self._session.decision
        if outcome.refusal is not None:
            raise outcome.refusal
        if outcome.over:
            # If the server does not know yet, the session stays open to deliver the last report.
            self.ended = True
            self.announce_decision()
            self._end_actions.run()
            if outcome.by_server:
                self.close(v1.END_REASON_COMPLETED)
            self._raise_failure()

    def rewind(self, epoch: int) -> None:
        """Goes back to an earlier epoch. Later ones are trained again but not reported again; their cost is added."""
        self.progress = self.progress._replace(epoch=min(epoch, self.progress.epoch))

    def measure(self) -> Progress:
        """The last epoch that has ended, with the sums up to now on the rank that measures."""
        reporter = None if self.ended else self._reporter
        return self.progress if reporter is None else reporter.measure(self.progress.epoch)

    def announce_decision(self) -> None:
        """Logs the decision that ended the trial, once and on rank 0 alone; not if a driver or `attempts` shows it."""
        decision = self.decision
        silent = self._announced or self._ranks.rank or not self._launch.repeatable
        if silent or decision is None or not decision.stop_train:
            return
        if self.raises_failure or decision.target_reached:
            self._announced = True
            announce("trial %d of job %r: %s", self.info.id.trial_number, self.info.id.job_id, decision.message)

    def share(self, ranks: Ranks) -> None:
        """Continues as rank 0 of several: a trainer has started the others since the trial began."""
        self._ranks = ranks
        self.info = replace(self.info, rank=ranks.rank, world_size=ranks.size)

    def settle(self) -> None:
        """Ends the trial after its last epoch, whether or not a call of the training loop has noticed a decision.

        Raises:
            TrainFailError: if the target was not reached, unless that was raised before.
        """
        if not self.ended:
            self.close(v1.END_REASON_COMPLETED)
        self._raise_failure()

    def close(self, reason: v1.EndReason.ValueType) -> None:
        """Ends the trial unless it is decided; may be called repeatedly."""
        if self._closed:
            return
        reason = self._actual_reason(reason)
        self.ended = self._closed = True
        self._end_reason = reason
        self._guard.remove()
        self._end(reason)

    def _actual_reason(self, reason: v1.EndReason.ValueType) -> v1.EndReason.ValueType:
        """Why a training ends that seems to be completed, with a warning if the trial is undecided."""
        over = self.ended or (self._session is not None and self._session.over)
        if reason != v1.END_REASON_COMPLETED or over:
            return reason
        trial, epoch = self.info.id, self.progress.epoch
        name = f"trial {trial.trial_number} of job {trial.job_id!r}"
        warn = log.warning if self._session is not None else log.debug
        if self._guard.interrupted:
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
        """Ends the trial unless it is decided, with its window: the process goes on with another trial."""
        self.close(reason)
        if self._reporter is not None:
            self._reporter.close_window()

    def remedy(self) -> str:
        """What to do so that a launch may deliver a model, after a trial that has not; all ranks must call it."""
        return self._ranks.on_first("attempts", lambda: self._advice() or self._usual_remedy)

    def _advice(self) -> str:
        """What the server advises; empty if it has no advice."""
        try:
            with self.client(_END_SECONDS) as client:
                return shown(client.get_job(self.info.id.job_id).details.advice)
        except JobNotFoundError:
            # That of a fallback trial may not have been registered yet.
            return "" if self.info.fallback else "the job is no longer on the server"
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
        if self.decision is None or not self.decision.stop_train:
            return "train every epoch of attempt.epochs(), and call on_evaluate(metric) in each"
        return "raise max_tries: the server takes the misses into account"

    def call_at_end(self, action: Callable[[], None]) -> None:
        """Calls `action` once, as soon as the trial is over or the process ends, before the server is notified.

        Args:
            action: may be called by a signal handler; must be quick and must not raise. Called at once if the trial is
                over already.
        """
        self._end_actions.add(action)

    def claim_outage_warning(self, begun_at: float) -> bool:
        """See `Exchange.claim_outage_warning`; without a session, every caller should warn."""
        return self._session is None or self._session.claim_outage_warning(begun_at)

    def client(self, timeout: float) -> Client:
        """A client for single calls about this trial, which tries an unreachable server only once."""
        return self._launch.client(self.info, timeout, search_timeout=0.0)

    @property
    def power(self) -> PowerUsage | None:
        """What the results say about power limits; None if this rank does not report."""
        return None if self._reporter is None else self._reporter.power

    def record_power_limit(self, watts: float) -> None:
        """Records the power limit that the trial trains at: in its results, and in the history of `wattwise run`."""
        if self.power is not None:
            self.power.limit_watts = watts
        self._launch.record_power_limit(watts)

    @property
    def _own_session(self) -> Session | None:
        """The session, if this is the only rank: otherwise ranks could disagree on when to stop."""
        return self._session if self._ranks.size == 1 else None

    def _raise_failure(self) -> None:
        failure = self.failure
        if failure is not None and not self._failure_raised:
            self._failure_raised = True
            raise failure

    def _rank_0(self) -> Reporter:
        if self._reporter is None:
            raise OperationOrderError("rank 0 has no trial: call get_batch_size() on every rank")
        return self._reporter

    def _end(self, reason: v1.EndReason.ValueType) -> None:
        self.announce_decision()
        self._end_actions.run()
        regular = reason in (v1.END_REASON_COMPLETED, v1.END_REASON_STOPPED_EARLY)
        if not regular:
            self._ranks.end()
        trial = self.info.id
        if self._session is not None:
            self._session.close(self._actual_reason(reason), _END_SECONDS)
        elif self._ranks.rank and not (regular or self.info.fallback):
            # Only this rank knows why it failed; rank 0 would give another reason.
            try:
                with self._launch.client(self.info, _END_SECONDS) as client:
                    client.end_trial(trial, reason)
            except WattwiseError as error:
                log.warning("rank %d could not end trial %d: %s", self.info.rank, trial.trial_number, error)
