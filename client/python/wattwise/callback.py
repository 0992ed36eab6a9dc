"""The calls that a training loop makes."""

from __future__ import annotations

import math
import os
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple

from wattwise import v1
from wattwise.credentials import Credentials
from wattwise.distributed import Ranks, warn_if_alone_by_mistake
from wattwise.errors import OperationOrderError, TrainFailError, WattwiseError
from wattwise.exchange import log
from wattwise.exits import ExitGuard, end_reason
from wattwise.launch import Launch
from wattwise.metric import number
from wattwise.monitor import Monitor, default_monitor
from wattwise.offline import decision_without_server
from wattwise.session import Session
from wattwise.spec import JobSpec
from wattwise.windows import TrainingWindows

if TYPE_CHECKING:
    from typing_extensions import Self

_END_SECONDS = 5.0


class _Outcome(NamedTuple):
    """What a report led to: the decision, if there is one yet, whether the trial is over, and who says so."""

    decision: v1.Decision | None
    over: bool
    by_server: bool


class BatchSizeOptimizer:
    """Asks for the batch size to train with, and reports every epoch until the trial is decided.

        bso = BatchSizeOptimizer("localhost:50051", spec)
        batch_size = bso.get_batch_size()
        bso.on_train_begin()
        for epoch in range(max_epochs):
            ...  # train an epoch, then evaluate it
            bso.on_evaluate(metric)
            if bso.training_finished:
                break

    Once the batch size is known, a server that is away never disturbs the training, which then stops by itself at its
    target or its last epoch. The trial is ended when the process exits, dies of an exception or is terminated; as a
    context manager (`with bso:`), when the block is left.

    With `torch.distributed` initialised before `get_batch_size`, every rank makes all the calls; rank 0 alone measures
    and talks to the server, and the other ranks get the batch size, every decision and every exception from it.

    Args:
        server: host and port of the server, such as "localhost:50051".
        job: the job. Without `gpu` the GPUs are read from the monitor.
        monitor: the energy meter of rank 0; None measures all GPUs that are visible to the process.
        timeout: seconds for which `get_batch_size` looks for the server. None gives an address at which no server can
            be reached ten seconds, which bridges a restart, and a server that is there but slow sixty.
        report_timeout: seconds that `on_evaluate` waits for an answer before the server counts as away.
        credentials: the token and the certificates; None is what the `WATTWISE_*` variables say.
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
    ) -> None:
        self._launch = Launch(server, job, timeout, credentials)
        self._monitor = monitor
        self._report_timeout = report_timeout
        self._pid = os.getpid()
        self._ranks = Ranks()
        self._answer: tuple[v1.Job, v1.GetNextBatchSizeResponse] | None = None
        self._session: Session | None = None
        self._guard: ExitGuard | None = None
        self._windows: TrainingWindows | None = None
        self._training = False
        self._epoch = 0
        self._decision: v1.Decision | None = None
        self._finished = False
        self._closed = False
        self._warned_of_nan = False

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
            monitor: the energy meter of rank 0; None is one like the driver's.
            timeout: as for the constructor, like any other option.
            credentials: likewise; None is what the driver was given.
            options: of the constructor.

        Raises:
            NoDriverError: if this process was not started by `wattwise run`; says what is missing.
            MonitorError: if the driver's meter cannot be used in this process.
        """
        from wattwise.joined import JoinedLaunch  # noqa: PLC0415 - few trainings have a driver

        launch = JoinedLaunch(timeout, credentials)
        meter = launch.monitor() if monitor is None else monitor
        bso = cls(launch.server, launch.spec, monitor=meter, timeout=timeout, credentials=credentials, **options)
        bso._launch = launch
        return bso

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(end_reason(error))

    @property
    def job(self) -> v1.Job:
        """The job as it stood when the batch size was given.

        Raises:
            OperationOrderError: before `get_batch_size`.
        """
        return self._given("job")[0]

    @property
    def trial(self) -> v1.Trial:
        """The trial as it stood when the batch size was given.

        Raises:
            OperationOrderError: before `get_batch_size`.
        """
        return self._given("trial")[1].trial

    @property
    def request_id(self) -> str:
        """What the calls of this launch are named in the server's log, and in errors."""
        return self._launch.request_id

    @property
    def reason(self) -> str:
        """The server's sentence on why it chose this batch size.

        Raises:
            OperationOrderError: before `get_batch_size`.
        """
        return self._given("reason")[1].reason

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
            MonitorError: if the energy or the GPUs cannot be measured; says what to pass instead.
        """
        if self._answer is None:
            warn_if_alone_by_mistake()
            ranks = Ranks.current()
            self._answer = ranks.on_first(self._ask)
            self._ranks, self._pid = ranks, os.getpid()
            self._attend()
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
        self._ranks.on_first(self._open_window)
        self._training = True

    def on_evaluate(self, metric: float) -> None:
        """Closes the window, reports the epoch that it ends and opens the next one. Does nothing once training is over.

        Args:
            metric: the validation metric after this epoch; rank 0's counts. NaN or infinite has not reached the target.

        Raises:
            TrainFailError: if the trial is over and the target was not reached.
            MetricTypeError: if the metric is no number; nothing has happened then.
            InvalidResultError: if the server refused the measurement.
            OperationOrderError: before `on_train_begin`, or in a forked process.
            MonitorError: if the energy cannot be measured.
        """
        if self._finished:
            return
        self._given("on_evaluate()")
        if not self._training:
            raise OperationOrderError("call on_train_begin() ahead of the first epoch, then on_evaluate() after each")
        outcome = self._ranks.on_first(lambda: self._report(metric))
        self._decision = outcome.decision or self._decision
        if outcome.over:
            # The session goes on where the server has not heard of the end yet.
            self._finished = True
            if outcome.by_server:
                self.close()
            self._raise_failure()

    def close(self, reason: v1.EndReason.ValueType = v1.END_REASON_COMPLETED) -> None:
        """Ends the trial unless it is decided; waits five seconds at most. May be called repeatedly.

        Args:
            reason: why training ends: `v1.END_REASON_COMPLETED`, `_ERROR`, `_OUT_OF_MEMORY` or `_PREEMPTED`.
        """
        if self._guard is None or self._closed:
            return
        self._finished = self._closed = True
        self._guard.remove()
        self._end(reason)

    @property
    def _alone(self) -> Session | None:
        return self._session if self._ranks.size == 1 else None

    def _given(self, what: str) -> tuple[v1.Job, v1.GetNextBatchSizeResponse]:
        if self._answer is None:
            raise OperationOrderError(f"call get_batch_size() before {what}: there is no trial yet")
        if os.getpid() != self._pid:
            raise OperationOrderError(f"{what} was used in a forked process; the trial belongs to process {self._pid}")
        return self._answer

    def _ask(self) -> tuple[v1.Job, v1.GetNextBatchSizeResponse]:
        monitor = default_monitor() if self._monitor is None else self._monitor
        job, answer = self._launch.ask(monitor)
        trial = answer.trial.id
        self._windows = TrainingWindows(monitor, f"wattwise {trial.job_id} {trial.trial_number}")
        return job, answer

    def _attend(self) -> None:
        """Keeps in touch with the server from now on and watches for the end of the process."""
        if self._ranks.rank == 0:
            lease = self.job.spec.trial_lease_seconds
            self._session = self._launch.session(self.trial.id, lease, self._report_timeout)
            self._session.start()
        self._guard = ExitGuard(self._end)
        self._guard.install()

    def _open_window(self) -> None:
        if self._windows is not None:
            self._windows.open()

    def _report(self, metric: float) -> _Outcome:
        session, windows = self._session, self._windows
        if session is None or windows is None:
            raise OperationOrderError("rank 0 has no trial: call get_batch_size() on every rank")
        value = number(metric)
        self._epoch += 1
        if not math.isfinite(value):
            self._warn_of_nan(value)
        windows.close()
        over = False
        try:
            result = v1.TrainingResult(
                trial=self.trial.id,
                time_seconds=windows.time_seconds,
                energy_joules=windows.energy_joules,
                metric=value if math.isfinite(value) else math.nan,
                current_epoch=self._epoch,
            )
            decision = session.report(result)
            if decision is None and not session.over:
                decision = decision_without_server(self.job.spec, result)
                over = decision is not None
        finally:
            if not (over or session.over):
                windows.open()
        return _Outcome(decision, over or session.over, session.over)

    def _warn_of_nan(self, value: float) -> None:
        if not self._warned_of_nan:
            self._warned_of_nan = True
            log.warning(
                "the metric of epoch %d is %s, which counts as target not reached; if the training has diverged, "
                "end it (said once)",
                self._epoch,
                value,
            )

    def _raise_failure(self) -> None:
        decision = self.decision
        if decision is not None and decision.stop_train and not decision.target_reached:
            raise TrainFailError(f"training is over and the target was not reached: {decision.message}", decision)

    def _end(self, reason: v1.EndReason.ValueType) -> None:
        if self._session is not None:
            self._session.close(reason, _END_SECONDS)
        elif reason in {v1.END_REASON_ERROR, v1.END_REASON_OUT_OF_MEMORY}:
            self._end_from_here(reason)

    def _end_from_here(self, reason: v1.EndReason.ValueType) -> None:
        """Says from another rank what only it knows: rank 0 will be terminated for it and would blame preemption."""
        try:
            self._launch.end(self.trial.id, reason, _END_SECONDS)
        except WattwiseError as error:
            log.warning("rank %d could not say that the trial failed: %s", self._ranks.rank, error)
