"""One execution of the command: started, measured, watched and ended, while its trial's lease is renewed."""

from __future__ import annotations

import errno
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from wattwise import v1
from wattwise.driver.files import writing
from wattwise.driver.interruption import InterruptedRunError, Interruption
from wattwise.driver.outcome import ENDED, OUTPUT, RUNNING, LaunchOutcome, MeasuredEpoch, has_client
from wattwise.driver.process import Process
from wattwise.errors import (
    JobNotFoundError,
    TrialDeletedError,
    TrialNotFoundError,
    WattwiseError,
    log,
)
from wattwise.files import open_file
from wattwise.rpc.answers import heartbeat_seconds
from wattwise.spec import cost, max_power_watts
from wattwise.training.delivery import is_refusal
from wattwise.training.own_decision import own_decision
from wattwise.training.resume import Sums
from wattwise.training.windows import TrainingWindows, training_result

if TYPE_CHECKING:
    from typing_extensions import Self

    from wattwise.driver.evaluations import EvaluationReader
    from wattwise.monitor import Monitor
    from wattwise.rpc.client import Client

_POLL_SECONDS = 0.1
_COST_CHECK_SECONDS = 1.0
_SHORTEST_SAVE_SECONDS, _SAVE_SHARE = 1.0, 0.05
"""The measurement so far is saved this often, in seconds and as a share of the time until then."""
_LONGEST_HEARTBEAT_SECONDS = 5.0
"""A command without a client is stopped no later than this after the server's decision."""


@dataclass(frozen=True)
class CommandExecution:
    """A command that is about to train a trial.

    Attributes:
        trial: the trial.
        spec: its job, with every default filled in.
        command: the program and its arguments.
        environment: all environment variables.
        workdir: where it runs.
        folder: the trial's folder.
        grace_seconds: time from SIGTERM to SIGKILL.
        lock: a descriptor whose lock is held as long as any process of the command runs.
        checks_cost: whether the server is asked to stop the trial when its cost, measured by the driver, exceeds the
            cost bound.
        output: reads the metrics in the output; None if the job file has no pattern for them.
    """

    trial: v1.Trial
    spec: v1.JobSpec
    command: tuple[str, ...]
    environment: Mapping[str, str]
    workdir: Path
    folder: Path
    grace_seconds: float
    lock: int
    checks_cost: bool
    output: EvaluationReader | None = None

    def run(
        self, client: Client, monitor: Monitor, interruption: Interruption, refresh: Callable[[], None]
    ) -> tuple[LaunchOutcome, InterruptedRunError | None]:
        """Runs the command until it ends; returns its outcome, and the signal that ended it, if one did.

        Args:
            client: does not retry calls.
            monitor: the driver's monitor.
            interruption: a second signal kills the command.
            refresh: called several times a second.
        """
        name = f"wattwise run {self.trial.id.job_id} {self.trial.id.trial_number}"
        windows = TrainingWindows(monitor, name, max_power_watts(self.spec), weighs_energy=self.spec.eta_knob > 0)
        windows.open()
        epochs = EpochLog(self.spec, self.trial.id, windows, self.output)
        self._outcome(RUNNING, epochs).save(self.folder)
        process = self._start()
        interruption.on_repeat = process.kill
        over_cost_bound, interrupted = False, None
        try:
            with LeaseKeeper(client, self.trial) as lease:
                over_cost_bound = self._watch(process, lease, epochs, client, refresh)
        except InterruptedRunError as error:
            interrupted = error
        finally:
            status = process.end()
            windows.close()
            refresh()
        epochs.read(to_end=True)
        return replace(self._outcome(status, epochs), over_cost_bound=over_cost_bound), interrupted

    def _start(self) -> Process:
        path = self.folder / OUTPUT
        with writing(path):
            output = open_file(path, "ab", within=self.folder)
        with output:
            try:
                return Process(
                    self.command,
                    environment=self.environment,
                    folder=self.workdir,
                    output=output,
                    grace_seconds=self.grace_seconds,
                    lock=self.lock,
                    ended=self.folder / ENDED,
                )
            except OSError as error:
                remedy = "shorten train.command or this process's environment, and " * (error.errno == errno.E2BIG)
                raise WattwiseError(
                    f"the command cannot be started: {error.strerror}; {remedy}run the same command to continue"
                ) from error

    def _outcome(self, status: int, epochs: EpochLog) -> LaunchOutcome:
        windows = epochs.windows
        sums = windows.time_seconds, windows.energy_joules
        return LaunchOutcome(status, *sums, monitor=windows.monitor, epochs=tuple(epochs.measured))

    def _watch(
        self, process: Process, lease: LeaseKeeper, epochs: EpochLog, client: Client, refresh: Callable[[], None]
    ) -> bool:
        """Waits until the command has ended; returns whether a cost above the bound was reported.

        The command is terminated when its trial is over.
        """
        windows = epochs.windows
        save_at = time.monotonic() + _SHORTEST_SAVE_SECONDS
        check_at = time.monotonic() + _COST_CHECK_SECONDS
        stopping = over_cost_bound = False
        while process.wait(_POLL_SECONDS) is None:
            refresh()
            new = epochs.read()
            if new or time.monotonic() >= save_at:
                if not new:
                    windows.close()
                    windows.reopen()
                self._outcome(RUNNING, epochs).save(self.folder)
                save_at = time.monotonic() + max(_SHORTEST_SAVE_SECONDS, _SAVE_SHARE * windows.time_seconds)
            # A client in the command learns of a stop itself, and may have work to finish, such as saving a model.
            if lease.reported:
                epochs.ignore()
            if stopping or lease.reported or has_client(self.folder):
                continue
            for result in new:
                lease.report(result)
            if self.checks_cost and lease.cost_bound is not None and time.monotonic() >= check_at:
                check_at = time.monotonic() + _COST_CHECK_SECONDS
                over_cost_bound = self._report_cost(lease, lease.cost_bound, windows, client) or over_cost_bound
            if lease.stopped or epochs.over:
                stopping = True
                process.terminate()
        return over_cost_bound

    def _report_cost(self, lease: LeaseKeeper, cost_bound: float, windows: TrainingWindows, client: Client) -> bool:
        """Reports a cost above the bound, which ends the trial; returns whether the server may have the report."""
        windows.close()
        windows.reopen()
        if cost(self.spec, windows.time_seconds, windows.energy_joules) <= cost_bound:
            return False
        so_far = Sums(1, windows.time_seconds, windows.energy_joules)
        lease.has_sent = True
        try:
            decision = client.report_result(training_result(self.trial.id, so_far, math.nan, windows.monitor))
        except WattwiseError as error:
            # If only the answer was lost, the next heartbeat has the stop. The lease keeper warns of an outage.
            log.debug("cost of trial %d not reported: %s", self.trial.id.trial_number, error)
            return not is_refusal(error)
        lease.stopped = lease.stopped or decision.stop_train
        return True


class EpochLog:
    """The epochs whose metrics were in the output so far, measured when they were read.

    Attributes:
        windows: measures the command.
        measured: the epochs.
        over: whether the newest one is the last: it reached the target, or is the job's last epoch.
    """

    def __init__(
        self, spec: v1.JobSpec, trial: v1.TrialId, windows: TrainingWindows, output: EvaluationReader | None
    ) -> None:
        self.windows = windows
        self.measured: list[MeasuredEpoch] = []
        self.over = False
        self._spec = spec
        self._trial = trial
        self._output = output
        self._is_measured = False

    def read(self, *, to_end: bool = False) -> list[v1.TrainingResult]:
        """Returns the results of the epochs that are new in the output.

        Args:
            to_end: whether the command has ended, and been measured.
        """
        if self._output is None or self.over:
            return []
        self._is_measured = to_end
        return list(self._add(self._output.read(self._measure, to_end=to_end)))

    def ignore(self) -> None:
        """Ignores the output: another program reports the trial."""
        self.measured.clear()
        self._output = None

    def _measure(self) -> tuple[float, float]:
        # What is read at once was printed at about the same time.
        if not self._is_measured:
            self._is_measured = True
            self.windows.close()
            self.windows.reopen()
        return self.windows.time_seconds, self.windows.energy_joules

    def _add(self, epochs: Iterator[MeasuredEpoch]) -> Iterator[v1.TrainingResult]:
        """Yields the results of these epochs, up to the last one of the trial."""
        for epoch in epochs:
            self.measured.append(epoch)
            result = epoch.result(self._trial, self.windows.monitor)
            self.over = own_decision(self._spec, result).stop_train
            yield result
            if self.over:
                return


class LeaseKeeper:
    """Sends reports, and heartbeats while there are none, from a thread within its block.

    Args:
        client: does not retry calls.
        trial: the trial.

    Attributes:
        stopped: the server has stopped the trial.
        reported: results of the trial have been reported, other than by this object.
        cost_bound: the cost above which the trial is stopped, in joules; None if there is no bound yet.
        has_sent: whether the server may have results of this driver.
    """

    def __init__(self, client: Client, trial: v1.Trial) -> None:
        self.stopped = False
        self.reported = False
        self.cost_bound: float | None = None
        self.has_sent = False
        self._client = client
        self._trial = trial.id
        self._interval = _pause(trial)
        self._over = threading.Event()
        self._wakes = threading.Event()
        self._results: deque[v1.TrainingResult] = deque()
        self._asked = False
        self._server_away = False
        self._thread = threading.Thread(target=self._renew, name="wattwise-lease", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        # The thread is not joined: it may be in a call to a server that does not answer.
        self._over.set()
        self._wakes.set()

    def report(self, result: v1.TrainingResult) -> None:
        """Sends a result as soon as the server is there, unless another program reports the trial."""
        self._results.append(result)
        self._wakes.set()

    def _renew(self) -> None:
        while not self._over.is_set() and not self.stopped:
            self._wakes.clear()
            try:
                decision = self._next()
            except (JobNotFoundError, TrialNotFoundError) as error:
                # Its database was lost or restored: the trial is delivered when it has ended.
                log.warning("trial %d: %s; training continues", self._trial.trial_number, error)
                return
            except TrialDeletedError:
                self.stopped = True
            except WattwiseError as error:
                # If only the answer was lost, a heartbeat shows what the server has decided.
                self._asked = False
                if not self._server_away and not self._over.is_set():
                    self._server_away = True
                    log.warning("trial %d: %s; training continues", self._trial.trial_number, error)
            except Exception:  # noqa: BLE001 - otherwise the thread ends without a line in the log
                log.exception(
                    "the lease of trial %d is no longer renewed: this is a bug in wattwise", self._trial.trial_number
                )
                return
            else:
                # A heartbeat between two reports that fail does not end the outage.
                self._server_away = self._server_away and bool(self._results)
                self._interval = _pause(decision)
                self.reported = self.reported or (decision.last_epoch > 0 and not self.has_sent)
                self.cost_bound = decision.cost_bound if decision.HasField("cost_bound") else None
                self.stopped = self.stopped or decision.stop_train
                if self._results:
                    continue
            self._wakes.wait(self._interval)

    def _next(self) -> v1.Decision:
        """Sends the next result; before the first one, a heartbeat shows whether another program reports the trial."""
        if self.reported:
            self._results.clear()
        if not self._results or not self._asked:
            decision = self._client.heartbeat(self._trial)
            self._asked = True
            return decision
        self.has_sent = True
        try:
            decision = self._client.report_result(self._results[0])
        except WattwiseError as error:
            if not is_refusal(error):
                raise
            log.warning("trial %d: %s", self._trial.trial_number, error)
            self._results.popleft()
            return self._client.heartbeat(self._trial)
        self._results.popleft()
        return decision


def _pause(answer: v1.Trial | v1.Decision) -> float:
    """Returns the pause before the next heartbeat, in seconds."""
    return min(heartbeat_seconds(answer), _LONGEST_HEARTBEAT_SECONDS)
