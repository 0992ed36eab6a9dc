"""The calls that a training loop makes."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any

from wattwise import v1
from wattwise.errors import OperationOrderError, TrainFailError
from wattwise.monitor import Monitor, default_monitor, monitor_kind
from wattwise.rpc.backoff import seconds
from wattwise.rpc.credentials import Credentials
from wattwise.spec import JobSpec
from wattwise.training.assignment import Assignment
from wattwise.training.epochs import Turn, loop
from wattwise.training.exits import EndActions, ExitGuard, check_reason, end_reason
from wattwise.training.launch import Given, Launch
from wattwise.training.metric import MetricReduction, checked_reduction, number, reduced
from wattwise.training.ranks import Ranks, warn_if_alone_by_mistake
from wattwise.training.reporting import Outcome, Reporter, warn_of_silence
from wattwise.training.session import Session
from wattwise.training.windows import TrainingWindows

if TYPE_CHECKING:
    from typing_extensions import Self

_END_SECONDS = 5.0


class BatchSizeOptimizer(Assignment):
    """Asks for the batch size to train with, and reports every epoch until the trial is decided.

        bso = BatchSizeOptimizer("localhost:50051", spec)
        batch_size = bso.get_batch_size()
        for epoch in bso.epochs():
            bso.on_evaluate(train_and_evaluate(batch_size))

    A loop of one's own calls `on_train_begin` ahead of the first epoch, and ends once `training_finished` is true.

    Once the batch size is known, a server that is away never disturbs the training, which then stops by itself at its
    target or its last epoch. The trial is ended when the process exits, dies of an exception or is terminated; as a
    context manager (`with bso:`), when the block is left. Ctrl-C counts as preempted. The end of a process shows
    neither the status of `sys.exit`, which counts as completed then, nor exceptions in processes that `multiprocessing`
    starts: train within `with bso:` there, so that the reason is known.

    With `torch.distributed` initialised before `get_batch_size`, every rank makes all the calls; rank 0 alone measures
    and talks to the server, and the other ranks get the batch size, every decision and every exception from it. A rank
    that fails tells the server why by itself. One that dies without a word fails the calls of the others as soon as
    `torch.distributed` notices: at once where its process died, and after the timeout of the process group where its
    machine is gone. The rank that is left then ends the trial. SIGTERM that finds a rank waiting for another is heeded
    once that wait is over.

    Args:
        server: host and port of the server, such as "localhost:50051".
        job: the job. Without `gpu` the GPUs are read from the monitor.
        monitor: the energy monitor of rank 0; None measures all GPUs that are visible to the process.
        timeout: seconds for which `get_batch_size` looks for the server. None gives an address at which no server can
            be reached ten seconds, which bridges a restart, and a server that is there but slow sixty.
        report_timeout: seconds that `on_evaluate` waits for an answer before the server counts as away.
        credentials: the token and the certificates; None is what the `WATTWISE_*` variables say.
        reduce_metric: which metric counts when several ranks give one each: "first" is rank 0's, "mean", "sum", "min"
            and "max" are over all ranks, and NaN if any of theirs is.

    Raises:
        InvalidArgumentError: if `reduce_metric` is none of these, the job no `JobSpec`, or a time no number of seconds.
    """

    def __init__(
        self,
        server: str,
        job: JobSpec,
        *,
        monitor: Monitor | None = None,
        timeout: float | None = None,
        report_timeout: float = 10.0,
        credentials: Credentials | None = None,
        reduce_metric: MetricReduction = "first",
    ) -> None:
        super().__init__(Launch(server, job, timeout, credentials))
        self._reduce_metric = checked_reduction(reduce_metric)
        self._monitor = monitor
        self._report_timeout = seconds("report_timeout", report_timeout)
        self._session: Session | None = None
        self._guard: ExitGuard | None = None
        self._at_end = EndActions()
        self._windows: TrainingWindows | None = None
        self._reporter: Reporter | None = None
        self._training = False
        self._turn = Turn()
        self._decision: v1.Decision | None = None
        self._finished = False
        self._closed = False
        self._told_of_failure = False

    @classmethod
    def from_env(
        cls,
        *,
        monitor: Monitor | None = None,
        timeout: float | None = None,
        credentials: Credentials | None = None,
        **options: Any,
    ) -> Self:
        """Joins the trial that `wattwise run` started this process for; its variables say which.

        `get_batch_size` then answers with that trial's batch size rather than asking for a trial; all else is as usual.

        Args:
            monitor: the energy monitor of rank 0; None is one like the driver's.
            timeout: as for the constructor, like any other option.
            credentials: likewise; None is what the driver was given.
            options: of the constructor.

        Raises:
            NoDriverError: if this process was not started by `wattwise run`; says what is missing.
            MonitorError: if the driver's monitor cannot be used in this process.
        """
        from wattwise.training.joined import JoinedLaunch  # noqa: PLC0415 - few trainings have a driver

        launch = JoinedLaunch(timeout, credentials)
        monitor = launch.monitor() if monitor is None else monitor
        bso = cls(launch.server, launch.spec, monitor=monitor, timeout=timeout, credentials=credentials, **options)
        bso._launch = launch
        return bso

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(end_reason(error))

    @property
    def monitor(self) -> Monitor | None:
        """The energy monitor; of the ranks beyond 0, and before `get_batch_size`, only the one that was given."""
        return self._monitor

    @property
    def decision(self) -> v1.Decision | None:
        """The newest decision: the server's, or this trainer's own if the server is away; None before the first."""
        if self._alone is None or (self._finished and not self._alone.stopped):
            return self._decision
        return self._alone.decision

    @property
    def target_reached(self) -> bool:
        """Whether the model's metric reached its target, at whatever cost."""
        return self.decision is not None and self.decision.target_reached

    @property
    def training_finished(self) -> bool:
        """Whether the trial is over and training should stop.

        The server may say so in the middle of an epoch, as when the job is deleted; with several ranks all of them
        learn it in their next `on_evaluate`. While the server is away, the target or the last epoch ends the training;
        what was measured is sent when the server is back, until `close` or the end of the process.
        """
        return self._finished or (self._alone is not None and self._alone.over)

    def get_batch_size(self) -> int:
        """The global batch size to train with; asks the server the first time.

        Raises:
            InvalidAddressError: if the address of the server is none.
            ServerUnavailableError: if the server cannot be reached in time; names its address and the cause.
            UnauthenticatedError, PermissionDeniedError: if the server wants a token, or another one.
            CredentialsError: if the token or the certificates cannot be used.
            UnsupportedCallError: if another program's gRPC server is at the address.
            InvalidJobSpecError: if the job's configuration has faults.
            JobDiffersError: if the job is registered with another configuration.
            NoBatchSizeConvergedError: if no batch size of the job can reach its target.
            ResumeError: if the trial of the checkpoint that was loaded cannot go on.
            MonitorError: if the energy or the GPUs cannot be measured; says what to pass instead.
        """
        if self._answer is None:
            warn_if_alone_by_mistake()
            ranks = Ranks.current()
            self._answer = given = ranks.on_first(self._ask)
            self._ranks, self._pid = ranks, os.getpid()
            self._progress, self._decision = given.progress, given.decision
            # The ranks are one launch, whichever of them saves a checkpoint.
            self._launch.request_id = given.request_id
            if given.decision is None:
                self._attend()
            else:
                self._finished = self._closed = True
        return self.trial.id.batch_size

    def on_train_begin(self) -> None:
        """Opens the measurement window; training starts now.

        Raises:
            OperationOrderError: before `get_batch_size`, when called again, or in a forked process.
            MonitorError: if the energy cannot be measured.
        """
        self._given("on_train_begin()")
        if self._training:
            raise OperationOrderError("on_train_begin() was called before; call it once, ahead of the first epoch")
        if not self._finished:
            self._ranks.on_first(self._open_window)
        self._training = True

    def epochs(self, max_epochs: int | None = None) -> Iterator[int]:
        """Yields the epochs to train, counted from 1, until the trial is over.

        It asks for the batch size and opens the measurement window if that has not been done, goes on after the last
        epoch of a checkpoint, and ends when the trial is decided or the server stopped it. Where nobody was told by
        `on_evaluate` that the trial is over without its target, this raises it. Leaving the loop early by `break` or
        `return` ends the trial as completed; an exception ends it only if it leaves the process, or a `with bso:`.

        Args:
            max_epochs: the last epoch; None is the job's `max_epochs`, at which the server stops in any case.

        Raises:
            TrainFailError: if the trial is over and the target was not reached, unless `on_evaluate` has said so.
            OperationOrderError: if an epoch passed without `on_evaluate`; a second one in a turn raises it at once.
            InvalidArgumentError: if `max_epochs` is no number of epochs.
            WattwiseError: as `get_batch_size` and `on_train_begin` say.
        """
        return loop(self, max_epochs, self._turn, self._begin_once, self._heed_end)

    def on_evaluate(self, metric: float) -> None:
        """Closes the window, reports the epoch that it ends and opens the next one. Does nothing once training is over.

        Every call is the end of an epoch. A monitor that fails meanwhile is logged, and estimated until it works again.

        Args:
            metric: the validation metric after this epoch; of several ranks' that which `reduce_metric` says. NaN or
                infinite has not reached the target.

        Raises:
            TrainFailError: if the trial is over and the target was not reached.
            MetricTypeError: if the metric is no number; nothing has happened then.
            InvalidResultError: if the server refused the measurement.
            OperationOrderError: before `on_train_begin`, in a forked process, or for the second time in a turn of the
                loop over `epochs()`; nothing has happened then.
        """
        if self._finished:
            return
        self._given("on_evaluate()")
        if not self._training:
            raise OperationOrderError("call on_train_begin() ahead of the first epoch, then on_evaluate() after each")
        if not self.training_finished:
            self._turn.refuse_second(self.last_epoch)
        if self._reduce_metric != "first":
            metric = reduced(self._ranks.gather(lambda: number(metric)), self._reduce_metric)
        outcome = self._ranks.on_first(lambda: self._report(metric))
        self._progress, self._decision = outcome.progress, outcome.decision or self._decision
        if outcome.refusal is not None:
            raise outcome.refusal
        if outcome.over:
            # The session goes on where the server has not heard of the end yet.
            self._finished = True
            self._at_end.run()
            if outcome.by_server:
                self.close()
            self._raise_failure()

    def call_at_end(self, action: Callable[[], None]) -> None:
        """Has something done as soon as the trial is over or the process goes away, before the server is told.

        Args:
            action: is called once, maybe by a signal handler; must be quick and not raise. At once if it is too late.
        """
        self._at_end.add(action)

    def first_to_warn(self) -> bool:
        """Whether nobody has warned of the server's present outage yet; who is told so has to do it."""
        return self._session is None or self._session.first_to_warn()

    def _begin_once(self) -> None:
        if not self._training:
            self.on_train_begin()

    def _heed_end(self) -> None:
        """Takes notice of an end that may have come without a report."""
        if not self._finished:
            self.close()
        self._raise_failure()

    def close(self, reason: v1.EndReason.ValueType = v1.END_REASON_COMPLETED) -> None:
        """Ends the trial unless it is decided; waits five seconds at most. May be called repeatedly.

        Args:
            reason: why training ends: `v1.END_REASON_COMPLETED`, `_ERROR`, `_OUT_OF_MEMORY` or `_PREEMPTED`.

        Raises:
            InvalidArgumentError: if the reason is none of these; the trial goes on then.
        """
        check_reason(reason)
        if self._guard is None or self._closed:
            return
        self._finished = self._closed = True
        self._guard.remove()
        self._end(reason)

    @property
    def _alone(self) -> Session | None:
        return self._session if self._ranks.size == 1 else None

    def _ask(self) -> Given:
        monitor = self._monitor = default_monitor() if self._monitor is None else self._monitor
        kind = monitor_kind(monitor)
        given = self._launch.ask(monitor)
        # The server hears it with the first result, the other ranks with this answer.
        given.answer.trial.monitor = kind
        trial, watts = given.answer.trial.id, given.job.spec.gpu.max_power_watts
        self._windows = windows = TrainingWindows(monitor, f"wattwise {trial.job_id} {trial.trial_number}", watts)
        _, windows.time_seconds, windows.energy_joules = given.progress
        return given

    def _attend(self) -> None:
        """Keeps in touch with the server from now on and watches for the end of the process."""
        if self._ranks.rank == 0:
            lease = self.job.spec.trial_lease_seconds
            self._session = self._launch.session(self.trial.id, lease, self._report_timeout)
            self._session.start()
            if self._windows is not None:
                self._reporter = Reporter(self._session, self._windows, self.job.spec, self.trial)
        self._guard = ExitGuard(self._end)
        self._guard.install()

    def _open_window(self) -> None:
        if self._windows is not None:
            self._windows.open()

    def _report(self, metric: float) -> Outcome:
        if self._reporter is None:
            raise OperationOrderError("rank 0 has no trial: call get_batch_size() on every rank")
        return self._reporter.report(self.last_epoch + 1, metric)

    def _raise_failure(self) -> None:
        decision = self.decision
        if decision is None or not decision.stop_train or decision.target_reached or self._told_of_failure:
            return
        self._told_of_failure = True
        raise TrainFailError(f"training is over and the target was not reached: {decision.message}", decision)

    def _end(self, reason: v1.EndReason.ValueType) -> None:
        self._at_end.run()
        if self._session is not None:
            if reason == v1.END_REASON_COMPLETED and not (self.last_epoch or self._session.over):
                warn_of_silence(self.trial)
            self._session.close(reason, _END_SECONDS)
        elif self._ranks.rank and reason != v1.END_REASON_COMPLETED:
            # Only this rank knows why; rank 0 would say another reason.
            self._launch.end(self.trial.id, reason, _END_SECONDS)
