"""The calls of a training loop."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator, Mapping
from copy import copy
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn
from weakref import WeakValueDictionary

from wattwise import v1
from wattwise.decision import Decision, decision_of
from wattwise.errors import (
    InvalidArgumentError,
    JobNotFoundError,
    OperationOrderError,
    ResumeError,
    TrainFailError,
    TrialDeletedError,
    announce,
    log,
    short_tracebacks,
)
from wattwise.monitor import Monitor, default_monitor
from wattwise.rpc.backoff import check_seconds
from wattwise.rpc.calls import trainer_end_reason
from wattwise.rpc.credentials import Credentials
from wattwise.rules import EndReason
from wattwise.spec import JobSpec, check_job, higher_is_better
from wattwise.training.assigned import AssignedTrial, has_driver
from wattwise.training.best import BestEpoch, best_state, better, saved_best
from wattwise.training.exits import end_reason
from wattwise.training.fallback import checked_fallback
from wattwise.training.inheritance import inherited_batch
from wattwise.training.launch import Endpoint, Launch
from wattwise.training.metric import MetricReduction, checked_reduction
from wattwise.training.ranks import Broadcast, Ranks, not_connected, warn_if_not_connected
from wattwise.training.resume import SavedTrial, saved_attempt
from wattwise.training.running import RunningTrial
from wattwise.training.split import GlobalBatch
from wattwise.training.start import StartedTrial
from wattwise.training.trial import Trial

if TYPE_CHECKING:
    from typing_extensions import Self

_newest: WeakValueDictionary[tuple[str, str], RunningTrial] = WeakValueDictionary()
"""The newest trial of this process by server and job. A trial that runs is kept alive by the hooks for its end."""


@short_tracebacks
class BatchSizeOptimizer:
    """Gets the batch size to train with, and reports every epoch until the trial is decided.

        bso = BatchSizeOptimizer("localhost:50051", spec)
        batch_size = bso.get_batch_size()
        for epoch in bso.epochs():
            bso.on_evaluate(train_and_evaluate(batch_size))

    Instead of `epochs`, your own loop calls `on_train_begin` before the first epoch and stops when `training_finished`
    is true. A trial may miss its target; `attempts` trains again, with the next trial, until one reaches it.

    Once the batch size is known, a server that is away never disturbs training: it then stops by itself at the target
    or at the last epoch. The trial ends when the process exits, raises an exception or is terminated, and when a
    `with bso:` block is left. Without a decision it then counts as stopped early, or as completed if there was no
    epoch. Ctrl-C counts as preempted. `sys.exit` outside of such a block is an exit without an error, whatever its
    status, and so is an exception in a process of `multiprocessing`: use `with bso:` there. The trial also ends, as
    preempted, when another optimizer of the same job in the same process gets its batch size.

    In a process that `wattwise run` has started, this is the driver's trial, on the driver's server, if the job is the
    same: the same `job_id` and the same configuration, apart from `gpu` where the script leaves it out. Another job is
    an error. The same script thus works with and without the driver.

    With `torch.distributed` initialised before `get_batch_size`, every rank makes all calls. Rank 0 measures and talks
    to the server; the other ranks receive the batch size, every decision and every exception from it. A rank that fails
    reports the reason itself. If a rank dies without notice, the calls of the others fail within 30 seconds if its
    process died, after the timeout of the process group if its machine is gone. The remaining ranks then end the trial.
    A rank that waits for others for 30 seconds logs which; after that it handles SIGTERM only when the wait is over.

    Args:
        server: host and port of the server, such as "localhost:50051", or several servers; see `Client`.
        job: the job. Without `gpu` the GPUs are read from the monitor.
        monitor: the energy monitor of rank 0; None measures all GPUs that are visible to the process.
        timeout: seconds that `get_batch_size` looks for the server. None waits ten seconds if no server can be reached
            at the address, which bridges a restart, and sixty for one that is slow.
        report_timeout: seconds that `on_evaluate` waits for an answer before the server counts as away.
        credentials: the token and the certificates; None reads the `WATTWISE_*` variables.
        reduce_metric: how the metrics of several ranks become one: "first" is rank 0's; "mean", "sum", "min" and "max"
            are over all ranks, and NaN if any metric is NaN.
        rank: this process, from 0, if the ranks are connected by other means than `torch.distributed`, such as MPI or
            JAX. Given together with `world_size` and `broadcast`, which take its place.
        world_size: the number of ranks.
        broadcast: sends an object of rank 0 to all ranks: called on every rank, with bytes on rank 0 and None on the
            others, it returns the bytes on each, like `bcast` of mpi4py. `reduce_metric` must be "first".
        fallback: the batch size to train with if the server cannot be reached, is out of order or has no batch size
            left: one of the job's, or "default" for its default. The trial is measured as usual, ends at the target or
            the last epoch, and is delivered to the server later. None reads the variable WATTWISE_FALLBACK; if that is
            not set either, `get_batch_size` raises the error.

    Raises:
        InvalidArgumentError: if `job` is not a JobSpec, `reduce_metric` is unknown, `fallback` is not one of the job's
            batch sizes, a timeout is not a number, or `rank`, `world_size` and `broadcast` do not fit together.
        InvalidJobSpecError: if there is a fallback and a value of the job has the wrong type.
        TrainerSetupError: if `wattwise run` has started this process for another job.
        JobDiffersError: if the job of `wattwise run` has the same `job_id` and another configuration.
        NoDriverError, MonitorError: as for `from_env`, in a process that `wattwise run` has started.
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
        rank: int | None = None,
        world_size: int | None = None,
        broadcast: Broadcast | None = None,
        fallback: int | str | None = None,
    ) -> None:
        assigned, of_server = AssignedTrial.from_env() if has_driver() else None, server
        if assigned is not None:
            assigned.check_same(job)
            if server != assigned.server:
                log.info("`wattwise run` has started this process: its server is %s, not %s", assigned.server, server)
            # Credentials for another server than the driver's are not used.
            credentials = credentials if server == os.environ.get("WATTWISE_SERVER") else None
            monitor = assigned.monitor() if monitor is None else monitor
            of_server, job = assigned.server, assigned.job
        self._launch = Launch(Endpoint.of(of_server, timeout, credentials), check_job(job), assigned)
        self._job = job
        # A driver has assigned the batch size already.
        self._fallback = checked_fallback(fallback, job) if assigned is None or fallback is not None else None
        self._monitor = self._given_monitor = monitor
        self._report_timeout = check_seconds("report_timeout", report_timeout)
        self._reduce_metric = checked_reduction(reduce_metric)
        self._given_ranks = Ranks.of(rank, world_size, broadcast)
        if self._given_ranks is not None and self._given_ranks.size > 1 and reduce_metric != "first":
            raise InvalidArgumentError(
                f"reduce_metric={reduce_metric!r} needs the metrics of all ranks, but broadcast only sends those of "
                "rank 0: combine them yourself, such as with allreduce of MPI, and omit reduce_metric"
            )
        self._running: RunningTrial | None = None
        # Of the trial that `_running` is, or will be.
        self._attempt = 1
        # That of the body of a loop over `attempts()`, while the body runs.
        self._in_attempt: Attempt | None = None
        # The epoch that the loop over `epochs()` trains; 0 outside of the loop.
        self._epoch_of_loop = 0
        self._best: BestEpoch | None = None

    @classmethod
    def from_env(
        cls,
        *,
        monitor: Monitor | None = None,
        timeout: float | None = None,
        report_timeout: float = 10.0,
        credentials: Credentials | None = None,
        reduce_metric: MetricReduction = "first",
        rank: int | None = None,
        world_size: int | None = None,
        broadcast: Broadcast | None = None,
    ) -> Self:
        """Joins the trial for which `wattwise run` started this process, as the environment describes it.

        `get_batch_size` returns the batch size of that trial instead of asking for a new one, also if the server cannot
        be reached.

        Args:
            monitor: the energy monitor of rank 0; None is one like the driver's.
            timeout: as for the constructor.
            report_timeout: as for the constructor.
            credentials: as for the constructor; None is what the driver was given.
            reduce_metric: as for the constructor.
            rank: as for the constructor.
            world_size: as for the constructor.
            broadcast: as for the constructor.

        Raises:
            NoDriverError: if this process was not started by `wattwise run`; names what is missing.
            MonitorError: if the driver's monitor cannot be used in this process.
            InvalidArgumentError: as for the constructor.
        """
        assigned = AssignedTrial.from_env()
        return cls(
            assigned.server,
            assigned.job,
            monitor=monitor,
            timeout=timeout,
            report_timeout=report_timeout,
            credentials=credentials,
            reduce_metric=reduce_metric,
            rank=rank,
            world_size=world_size,
            broadcast=broadcast,
        )

    def __getstate__(self) -> dict[str, Any]:
        """Hands the trial over to the processes that a trainer spawns: their rank 0 continues it."""
        if self._running is None:
            return {**self.__dict__, "_monitor": self._given_monitor}
        if self._running.begun or not (self._running.raises_failure and self._launch.repeatable):
            raise OperationOrderError(
                "the trial cannot be handed over to another process now: start processes that train together with "
                "torchrun, and call torch.distributed.init_process_group() at the beginning"
            )
        # It continues like one of a checkpoint.
        launch = copy(self._launch)
        launch.resume(SavedTrial.from_state(self.state_dict()))
        launch.announces = False
        self._running.close_for_another(v1.END_REASON_PREEMPTED)
        return {**self.__dict__, "_monitor": self._given_monitor, "_running": None, "_launch": launch}

    def __copy__(self) -> NoReturn:
        """Refuses a copy: two objects would end and report one trial."""
        raise OperationOrderError(
            "a BatchSizeOptimizer cannot be copied, because its trial runs once: pass the object itself, or create "
            "another one for another trial"
        )

    def __deepcopy__(self, _: object) -> NoReturn:
        """Refuses a copy, like `copy.copy`."""
        self.__copy__()

    def __repr__(self) -> str:
        server, job_id = self._launch.server, self._job.job_id
        trial = None if self._running is None else self._running.info.trial
        return f"BatchSizeOptimizer({server!r}, job_id={job_id!r}, trial={trial}, decision={self.decision})"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(end_reason(error))

    @property
    def trial(self) -> Trial:
        """The trial: its number, job, rank, and why the server chose this batch size.

        Raises:
            OperationOrderError: before `get_batch_size`, or in a forked process.
        """
        return self._trial("trial").info.trial

    @property
    def global_batch(self) -> GlobalBatch:
        """The batch size and those of the job, for callbacks; before `join_ranks` there may be no trial.

        Raises:
            OperationOrderError: before `get_batch_size`.
        """
        return self._inherited or self.trial.global_batch

    @property
    def world_size(self) -> int:
        """The number of ranks, as far as this process knows; see `global_batch`."""
        return int(os.environ["WORLD_SIZE"]) if self._inherited else self.trial.world_size

    @property
    def waits_for_trial(self) -> bool:
        """Whether this process is a rank that has a batch size, and will have its trial after `join_ranks`."""
        return self._inherited is not None

    @property
    def _inherited(self) -> GlobalBatch | None:
        """The batch size that the process which started this rank has got; None if this process has or gets a trial."""
        return inherited_batch() if self._running is None and self._given_ranks is None else None

    @property
    def last_epoch(self) -> int:
        """The last epoch that `on_evaluate` ended, from 1; 0 before the first. A checkpoint continues the count."""
        return 0 if self._running is None else self._running.sums.epoch

    @property
    def best(self) -> BestEpoch | None:
        """The epoch with the best metric of this launch, over all attempts; None before the first.

            if bso.improved:
                save(model)

        A launch that never reaches its target can still keep its best model. A checkpoint continues it. A further loop
        over `attempts` begins without one.
        """
        return self._best

    @property
    def improved(self) -> bool:
        """Whether the last epoch is the best one so far, over all attempts."""
        return self._best is not None and self._best[:2] == (self._attempt, self.last_epoch)

    @property
    def decision(self) -> Decision | None:
        """The newest decision: the server's, or this trainer's own while the server is away; None before the first.

        If `close` or the end of the loop ended the trial without a decision, `stop_train` is true and `end_reason` says
        why.
        """
        newest = None if self._running is None else self._running.decision
        return None if newest is None else decision_of(newest)

    @property
    def target_reached(self) -> bool:
        """Whether the metric reached its target, regardless of cost."""
        return self.decision is not None and self.decision.target_reached

    @property
    def training_finished(self) -> bool:
        """Whether the trial is over and training should stop.

        It may become true in the middle of an epoch, for example if the job is deleted; with several ranks, all of them
        learn it in their next `on_evaluate`. While the server is away, the target or the last epoch ends the training;
        the measurements are delivered if the server is back before `close` or the end of the process.
        """
        return self._running is not None and self._running.finished

    def get_batch_size(self, fallback: int | str | None = None) -> int:
        """Returns the global batch size to train with; asks the server the first time.

        Args:
            fallback: as for the constructor, instead of that one. `bso.trial.fallback` says whether it was needed.

        Raises:
            InvalidArgumentError: if `fallback` is not one of the job's batch sizes.
            InvalidAddressError: if the server's address is malformed.
            UnauthenticatedError, PermissionDeniedError: if the server requires a token, or another one.
            CredentialsError: if the token or the certificates cannot be used.
            InvalidJobSpecError: if the job's configuration is invalid; with a fallback also if there is no server.
            JobDiffersError: if the job is registered with another configuration.
            ServerUnavailableError: without a fallback, if the server cannot be reached in time, its name does not
                resolve, or its certificate is not accepted; names its address and the cause.
            UnsupportedCallError: without a fallback, if another gRPC server listens at the address.
            ServerError, ResourceExhaustedError: without a fallback, if the server fails, or has reached a limit.
            NoBatchSizeLeftError: without a fallback, if no batch size is left to try.
            ResumeError: if the trial of the loaded checkpoint cannot continue.
            MonitorError: if the energy or the GPUs cannot be measured; says what to pass instead.
        """
        if (inherited := self._inherited) is not None:
            return inherited.size
        if self._launch.next is not None:
            if fallback is not None:
                self._fallback = checked_fallback(fallback, self._job)
            self._end_older()
            unconnected = warn_if_not_connected() if self._given_ranks is None else 0
            ranks = self._given_ranks or Ranks.current()
            self._begin(self._shared(ranks, lambda: self._start(ranks.size, unconnected)), ranks)
        return self.trial.batch_size

    def join_ranks(self) -> None:
        """Gets the batch size, or shares that of rank 0 with ranks that a trainer has started since. For callbacks.

        Every rank must call it, once the processes are connected and before `on_train_begin`.

        Raises:
            OperationOrderError: if other ranks than rank 0 have got a batch size on their own.
            WattwiseError: as documented at `get_batch_size`.
        """
        ranks = self._given_ranks or Ranks.current()
        if ranks.given or ranks.size == 1 or (self._running is not None and self.trial.world_size == ranks.size):
            self.get_batch_size()
            return
        own = ranks.gather("get_batch_size", lambda: self._running is not None)
        if any(own[1:]):
            raise OperationOrderError(
                "the ranks got their batch sizes before they were connected, so each has a trial of its own: call "
                "torch.distributed.init_process_group() before get_batch_size(), and before a callback is created"
            )
        if not own[0]:
            self.get_batch_size()
            return
        started = self._shared(ranks, lambda: self._trial("join_ranks()").started)
        if self._running is None:
            self._begin(started, ranks)
        else:
            self._running.share(ranks)

    def steps(self, examples: float) -> int:
        """Returns the number of steps of the trial's batch size that pass `examples` examples.

            for epoch in bso.epochs():
                for _ in range(bso.steps(100_000)):
                    train_step(next_batch(bso.get_batch_size()))
                bso.on_evaluate(evaluate())

        For loops that count steps: with the same `examples`, an epoch is the same work for every batch size. A step is
        one update of the weights over all ranks. Asks for the batch size if that has not been done.

        Args:
            examples: the number of training examples between two reports, in all ranks together.

        Returns:
            The nearest whole number, and at least 1: let `examples` be many times the largest batch size, or a
            multiple of all batch sizes.

        Raises:
            InvalidArgumentError: if `examples` is not a finite number above 0.
            WattwiseError: as documented at `get_batch_size`.
        """
        self.get_batch_size()
        return self.trial.global_batch.steps(examples)

    def on_train_begin(self) -> None:
        """Opens the measurement window; training starts now.

        Raises:
            OperationOrderError: before `get_batch_size`, if called twice, or in a forked process.
            MonitorError: if the energy cannot be measured.
        """
        trial = self._trial("on_train_begin()")
        if trial.begun:
            raise OperationOrderError("on_train_begin() was already called; call it once, before the first epoch")
        trial.open_window()

    def epochs(self, max_epochs: int | None = None) -> Iterator[int]:
        """Yields the epochs to train, from 1, until the trial is over.

        Asks for the batch size and opens the measurement window if that has not been done. Continues after the last
        epoch of a checkpoint. If the server ends the trial without its target between two calls of `on_evaluate`, the
        loop raises the error.

        Leaving the loop early, by `break`, `return` or an exception, does not end the trial: another loop over
        `epochs()` continues it. It ends at `close`, at the end of a `with bso:` block, or with the process; until then
        its lease is renewed, and its time and energy are counted.

        Args:
            max_epochs: the last epoch; None is the job's `max_epochs`, where the server stops in any case.

        Raises:
            TrainFailError: if the trial is over and the target was not reached, unless `on_evaluate` raised it.
            OperationOrderError: if an epoch passed without `on_evaluate`.
            InvalidArgumentError: if `max_epochs` is not a positive integer.
            WattwiseError: as documented at `get_batch_size` and `on_train_begin`.
        """
        self.get_batch_size()
        trial = self._trial("epochs()")
        of_job = trial.info.job.spec.max_epochs
        last = of_job if max_epochs is None else _positive("max_epochs", max_epochs, "the max_epochs of the job")
        if not trial.begun:
            self.on_train_begin()
        try:
            while self.last_epoch < last and not trial.finished:
                # A plain int: PyTorch refuses to load checkpoints with other number types.
                self._epoch_of_loop = epoch = self.last_epoch + 1
                yield epoch
                if self.last_epoch < epoch and not trial.finished:
                    raise OperationOrderError(
                        f"epoch {epoch} passed without a metric: call on_evaluate(metric) in every iteration; for "
                        "fewer evaluations, train more examples in each"
                    )
        finally:
            self._epoch_of_loop = 0
        trial.end_loop()

    def attempts(self, max_tries: int = 5) -> Iterator[Attempt]:
        """Yields one trial after another, until one reaches its target.

            for attempt in bso.attempts():
                model = build(seed + attempt.seed_offset)
                for epoch in attempt.epochs():
                    attempt.on_evaluate(train_and_evaluate(model, attempt.batch_size))
            # `model` has reached the target.

        A trial that ends without its target raises nothing in the loop; the next one begins once the body of the loop
        has ended. The variables of the body then still refer to the earlier model: if memory does not suffice for two,
        set them to None before the next one is built.

        All calls of this object work on the current trial, so that callbacks, `data_loader`, `PowerLimitOptimizer` and
        `state_dict` may be used in the loop. The first trial is that of the loaded checkpoint, or of `get_batch_size`
        if that was called before and the trial is not over. If the trial is over, also after `close`, the loop begins
        with a new trial, as attempt 1. A process of `wattwise run` has one trial, and the driver starts the next
        process.

        Leaving the loop early, by `break`, `return` or an exception, does not end the trial, as with `epochs`. In a
        `with attempt:` block an exception ends it; one that runs out of memory is followed by the next trial, unless it
        was the last.

        Args:
            max_tries: the number of trials at most.

        Raises:
            TrainFailError: if no trial reached the target, or the job was deleted; says what to change.
            NoBatchSizeLeftError: if no batch size is left to try.
            InvalidArgumentError: if `max_tries` is not a positive integer.
            WattwiseError: as documented at `get_batch_size`.
        """
        _positive("max_tries", max_tries, "5")
        if self.training_finished and self._launch.next is None and self._launch.repeatable:
            self._begin_again(1)
            self._best = None
        self.get_batch_size()
        tries = max_tries if self._launch.repeatable else 1
        while True:
            # None in a rank that joins the trial in the body.
            running = None if self._inherited else self._trial("attempts()")
            self._in_attempt = Attempt(self, running, self._attempt, tries)
            if running is not None:
                running.raises_failure = False
            try:
                yield self._in_attempt
                trial = self._trial("attempts()")
                if not self.target_reached:
                    trial.close_for_another(v1.END_REASON_COMPLETED)
            finally:
                self._in_attempt = None
                if self._running is not None:
                    self._running.raises_failure = True
            if self.target_reached:
                return
            missed = "training is over and the target was not reached"
            if self._attempt > 1:
                missed = f"{missed} in {self._attempt} attempts; the last"
            if self._attempt >= tries:
                trial.announce_decision()
                raise TrainFailError(f"{missed}: {trial.outcome}; {trial.remedy()}", self.decision)
            if not (trial.out_of_memory or trial.info.rank):
                log.warning("attempt %d of %d did not reach the target: %s", self._attempt, tries, trial.outcome)
            self._begin_again(self._attempt + 1)
            try:
                self.get_batch_size()
            except (JobNotFoundError, TrialDeletedError):
                raise TrainFailError(f"{missed}: {trial.outcome}; {trial.remedy()}", self.decision) from None

    def on_evaluate(self, metric: float) -> None:
        """Closes the window, reports the epoch, and opens the next window.

        Does nothing once the trial is over; after `close`, the first such call logs a warning.

        Every call ends an epoch. If the monitor fails, this is logged, and energy is estimated until it works again.

        Args:
            metric: the validation metric after this epoch; `reduce_metric` combines those of several ranks. NaN and
                infinity never reach the target.

        Raises:
            TrainFailError: if the trial is over and the target was not reached.
            MetricTypeError: if the metric is not a number; the epoch is not over then.
            InvalidResultError, InvalidRequestError, NotPossibleNowError: if the server refused the measurement, or an
                earlier one that was kept while it was away; the epoch is over.
            OperationOrderError: before `on_train_begin`, in a forked process, or if called twice in one turn of a loop
                over `epochs()`; the second call is ignored.
        """
        if self._running is not None and self._running.seen_end:
            self._running.warn_of_end()
            return
        trial = self._trial("on_evaluate()")
        if not trial.begun:
            raise OperationOrderError("call on_train_begin() before the first epoch, then on_evaluate() after each")
        if not trial.finished and 0 < self._epoch_of_loop <= self.last_epoch:
            raise OperationOrderError(
                f"epoch {self._epoch_of_loop} already has a metric, and a second one would count as another epoch: "
                "call on_evaluate(metric) once in every iteration over epochs()"
            )
        before = trial.sums.epoch
        try:
            trial.end_epoch(metric, self._reduce_metric)
        finally:
            if trial.sums.epoch > before:
                newest = BestEpoch(self._attempt, trial.sums.epoch, trial.metric)
                higher = higher_is_better(trial.info.job.spec)
                self._best = better(self._best, newest, higher_is_better=higher)
                if self._in_attempt is not None:
                    self._in_attempt.best = better(self._in_attempt.best, newest, higher_is_better=higher)

    def close(self, reason: EndReason | str = EndReason.COMPLETED) -> None:
        """Ends the trial unless it is decided; waits for the server, seven seconds at most. May be called repeatedly.

        Args:
            reason: why training ends: `EndReason.COMPLETED`, which counts as stopped early after the first epoch,
                `STOPPED_EARLY`, `ERROR`, `OUT_OF_MEMORY` or `PREEMPTED`.

        Raises:
            InvalidArgumentError: if the reason is another one; the trial is not ended then.
        """
        value = trainer_end_reason(reason)
        if self._running is not None:
            self._running.close(value)

    def state_dict(self, *, within_epoch: bool | None = None) -> dict[str, str | int | float]:
        """Returns the state that a checkpoint needs so that `load_state_dict` continues the trial: plain values.

        It describes the end of the last epoch: save it after `on_evaluate`, together with the model at that point.

        Args:
            within_epoch: whether the checkpoint continues in the middle of an epoch: the state then has the time and
                energy up to now, instead of those of the last epoch's end. None is true in a loop over `epochs()`
                before the `on_evaluate` of the iteration.

        Raises:
            OperationOrderError: before `get_batch_size`, or in a forked process.
        """
        trial = self._trial("state_dict()")
        if within_epoch is None:
            within_epoch = self._epoch_of_loop > self.last_epoch
        sums = trial.measure() if within_epoch else trial.sums
        saved = SavedTrial.of(trial.info.snapshot, sums)
        return {**saved.state(), "attempt": self._attempt, **best_state(self._best)}

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        """Continues the trial of a checkpoint: `get_batch_size` then returns the batch size of that trial.

        Its process may have been killed or preempted. Epochs, time and energy continue from the checkpoint. Epochs that
        were reported after the checkpoint are trained again but not reported again, and their cost is added. If the
        trial has been decided in the meantime, `training_finished` is true after `get_batch_size`, and `decision` is
        set. With several ranks every rank calls this; rank 0's state counts. The state of the trial that this process
        trains already changes nothing, so that a trainer may go back to its last checkpoint.

        Trainers that load their checkpoint late may call this after `get_batch_size`, until training begins, if both
        trials have the same batch size: the new trial ends, as preempted, and that of the checkpoint continues.

        Args:
            state: the result of `state_dict`.

        Raises:
            ResumeError: if the state is invalid, belongs to another job, has another batch size than the trial that
                has been started, or is that of another epoch than the state before it. `get_batch_size`, or this call
                after it, raises it if the trial cannot continue, for example because it crashed or its job was deleted.
            OperationOrderError: after training has begun.
        """
        saved = SavedTrial.from_state(state)
        if self._running is None:
            self._continue(saved, state)
            return
        if saved.launch_id == self.trial.launch_id:
            trains = self._running.begun or self.training_finished
            if not trains and saved.sums.epoch != self.last_epoch:
                raise ResumeError(
                    f"{saved.name} continues after epoch {self.last_epoch}, but this checkpoint is that of epoch "
                    f"{saved.sums.epoch}: load the state of the checkpoint that the model is loaded from"
                )
            return
        self._check_replaceable(saved, saved_attempt(state))
        started = self._running
        started.close_for_another(v1.END_REASON_PREEMPTED)
        self._continue(saved, state)
        self.get_batch_size()
        if self._in_attempt is not None:
            self._in_attempt.continue_with(self._trial("load_state_dict()"), self._attempt)

    def _continue(self, saved: SavedTrial, state: Mapping[str, object]) -> None:
        attempt, best = saved_attempt(state), saved_best(state)
        self._launch.resume(saved)
        self._attempt, self._best = attempt, best

    def _check_replaceable(self, saved: SavedTrial, attempt: int) -> None:
        """Checks that the trial of a checkpoint may take the place of the one that was started.

        Raises:
            ResumeError, OperationOrderError: as documented at `load_state_dict`.
        """
        trial = self.trial
        if self._trial("load_state_dict()").begun or self.last_epoch:
            raise OperationOrderError(
                f"load_state_dict() was called while {trial.name} is training: call it before the first epoch, at best "
                "before get_batch_size()"
            )
        if not self._launch.repeatable:
            raise ResumeError(
                "this process was started by `wattwise run` for a trial of its own, and cannot continue that of a "
                "checkpoint: start the training without the checkpoint"
            )
        if attempt < self._attempt:
            raise ResumeError(
                f"the checkpoint is that of attempt {attempt}, but this is attempt {self._attempt}, which trains from "
                "the start: load the checkpoint in the first turn of the loop only"
            )
        if saved.batch_size != trial.batch_size:
            raise ResumeError(
                f"{saved.name} of the checkpoint has batch size {saved.batch_size}, but this launch has already got "
                f"batch size {trial.batch_size} for a new trial: load the checkpoint's state before the batch size is "
                "asked for (callbacks have an argument for that), or start the training without the checkpoint"
            )

    def _shared(self, ranks: Ranks, start: Callable[[], StartedTrial]) -> StartedTrial:
        """Returns the trial that rank 0 starts, or has, and the place of it among the attempts, on every rank."""
        started, self._attempt, self._best = ranks.on_first(
            "get_batch_size", lambda: (start(), self._attempt, self._best)
        )
        return started

    def _start(self, ranks: int, unconnected: int) -> StartedTrial:
        if self._monitor is None:
            self._monitor = default_monitor()
        started = self._launch.start(self._monitor, self._fallback, unconnected)
        # A warning says so of a fallback.
        if self._launch.announces and not started.info.trial.fallback:
            size = f"{started.info.batch_size} over {ranks} ranks" if ranks > 1 else f"{started.info.batch_size}"
            # The reason is that of the first launch.
            epoch, reason = started.sums.epoch, started.info.reason
            announce(
                "%s has batch size %s%s",
                *(started.info.trial.name, size, f" and continues after epoch {epoch}" if epoch else f": {reason}"),
            )
        return started

    def _warn_of_nothing_to_train(self) -> None:
        """Warns if the trial of a checkpoint is over: no epoch follows."""
        trial = self.trial
        if self.training_finished and self.decision is not None and trial.rank == 0:
            log.warning(
                "%s, which the checkpoint continues, is over, so nothing is trained (%s); to train again, start "
                "without the checkpoint",
                *(trial.name, self.decision.message),
            )

    def _begin(self, started: StartedTrial, ranks: Ranks) -> None:
        self._running = RunningTrial(self._launch, started, ranks, self._monitor, self._report_timeout)
        self._running.raises_failure = self._in_attempt is None
        _newest[self._launch.job_key] = self._running
        self._launch.next = None
        self._warn_of_nothing_to_train()

    def _end_older(self) -> None:
        """Ends the trial of an older optimizer of the job, such as that of a notebook's cell that is run again."""
        older = _newest.get(self._launch.job_key)
        # Optimizers of a launch that was given its trial share that trial.
        if older is None or not older.trains_here or not self._launch.repeatable:
            return
        # The batch size is not the cause, and a checkpoint of that trial can continue it.
        older.close_for_another(v1.END_REASON_PREEMPTED)
        log.warning("%s is ended, because a new optimizer of the job begins in this process", older.info.trial.name)

    def _begin_again(self, attempt: int) -> None:
        """Makes `get_batch_size` ask for another trial."""
        self._launch.repeat(self._trial("attempts()").info)
        self._attempt = attempt
        # Trainers have reference cycles that keep the previous model in the memory of the GPU.
        gc.collect()

    def _trial(self, call: str) -> RunningTrial:
        if self._running is None:
            if self._inherited is not None:
                raise OperationOrderError(
                    f"{call} needs the trial, which this process joins once its trainer has connected it: start "
                    "the processes with torchrun, and call torch.distributed.init_process_group() at the beginning"
                )
            raise OperationOrderError(f"call get_batch_size() before {call}: there is no trial yet")
        self._running.check_process(call)
        return self._running


def running_trial(bso: BatchSizeOptimizer) -> RunningTrial:
    """Returns what the integrations and `PowerLimitOptimizer` work on.

    Raises:
        OperationOrderError: before `get_batch_size`, or in a forked process.
    """
    return bso._trial("the training")  # noqa: SLF001 - no part of the public class


def connection_advice(bso: BatchSizeOptimizer) -> str | None:
    """Returns what to do if a launcher started several processes that are not connected; None otherwise."""
    given = bso._given_ranks is not None or bso._inherited is not None  # noqa: SLF001 - no part of the public class
    return None if given else not_connected()


@short_tracebacks
class Attempt:
    """One trial of `BatchSizeOptimizer.attempts`, with the calls of the optimizer.

    A `with attempt:` block ends the trial if an exception leaves it, for the reason that the exception shows. If the
    memory ran out and another attempt follows, the block swallows the exception and the loop goes on, with a single
    process; every other exception leaves the loop.

        for attempt in bso.attempts():
            with attempt:
                ...

    Attributes:
        number: counts the attempts from 1. A checkpoint continues the count.
        best: its epoch with the best metric so far; None before the first.
    """

    def __init__(self, bso: BatchSizeOptimizer, running: RunningTrial | None, number: int, max_tries: int) -> None:
        self._bso = bso
        self.continue_with(running, number)
        self._max_tries = max_tries

    def __repr__(self) -> str:
        return f"Attempt(number={self.number}, trial={None if self._joined is None else self.trial})"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if error is None or self._bso.waits_for_trial:
            return False
        reason = end_reason(error)
        self._running.close(trainer_end_reason(reason))
        if reason is not EndReason.OUT_OF_MEMORY or self.target_reached or self.trial.world_size > 1:
            # With several ranks the others wait for this one in the middle of a step.
            return False
        # The text only: the exception itself keeps the model alive.
        what, last = str(error) or type(error).__name__, self.number >= self._max_tries
        remedy = self._running.remedy() if last else "the next attempt follows"
        log.warning(
            "attempt %d of %d ran out of memory with batch size %d (%s): %s",
            *(self.number, self._max_tries, self.batch_size, what, remedy),
        )
        return not last

    def continue_with(self, running: RunningTrial | None, number: int) -> None:
        """Continues with the trial of a checkpoint that its body has loaded, in place of a new one."""
        self._joined, self.number = running, number
        best = self._bso.best
        self.best = best if best is not None and best.attempt == number else None

    def is_better_than(self, other: BestEpoch | None) -> bool:
        """Returns whether it has an epoch with a better metric than the epoch of another attempt."""
        higher = higher_is_better(self._running.info.job.spec)
        return self.best is not None and better(other, self.best, higher_is_better=higher) is self.best

    @property
    def _running(self) -> RunningTrial:
        # A rank that its trainer has started joins the trial later.
        self._joined = self._joined or running_trial(self._bso)
        return self._joined

    @property
    def batch_size(self) -> int:
        """The global batch size to train with."""
        return self._bso.get_batch_size() if self._joined is None else self.trial.batch_size

    @property
    def seed_offset(self) -> int:
        """A number to add to your seed, so that no attempt repeats an earlier one: 0 in the first, 1 in the second."""
        return self.number - 1

    @property
    def trial(self) -> Trial:
        """The trial: its number, job, rank, and why the server chose this batch size."""
        return self._running.info.trial

    @property
    def target_reached(self) -> bool:
        """Whether the metric reached its target, regardless of cost."""
        decision = self._running.decision
        return decision is not None and decision.target_reached

    def steps(self, examples: float) -> int:
        """Returns the number of steps of the trial's batch size that pass `examples` examples.

        Args:
            examples: as for `BatchSizeOptimizer.steps`.

        Raises:
            InvalidArgumentError: if `examples` is not a finite number above 0.
        """
        return self.trial.global_batch.steps(examples)

    def epochs(self, max_epochs: int | None = None) -> Iterator[int]:
        """Yields the epochs to train, as `BatchSizeOptimizer.epochs` does, until the trial is over.

        Args:
            max_epochs: the last epoch; None is the job's `max_epochs`, where the server stops in any case.

        Raises:
            OperationOrderError: if an epoch passed without `on_evaluate`, or another attempt has begun.
            WattwiseError: as documented at `BatchSizeOptimizer.epochs`, except for `TrainFailError`.
        """
        self._check_current("epochs()")
        yield from self._bso.epochs(max_epochs)

    def on_evaluate(self, metric: float) -> None:
        """Reports the epoch, as `BatchSizeOptimizer.on_evaluate` does. Does nothing once the trial is over.

        Args:
            metric: the validation metric after this epoch.

        Raises:
            OperationOrderError: if another attempt has begun, or as documented at `BatchSizeOptimizer.on_evaluate`.
            WattwiseError: as documented there, except for `TrainFailError`.
        """
        self._check_current("on_evaluate()")
        self._bso.on_evaluate(metric)

    def _check_current(self, call: str) -> None:
        if running_trial(self._bso) is not self._running:
            raise OperationOrderError(
                f"{call} was called on attempt {self.number}, which is over: use the attempt of the current turn"
            )


def _positive(name: str, number: int, default: str) -> int:
    if isinstance(number, bool) or not isinstance(number, int) or number < 1:
        raise InvalidArgumentError(
            f"{name}={number!r} is invalid: pass an integer of 1 or more, or omit it for {default}"
        )
    return number
