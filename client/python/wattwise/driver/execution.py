"""One execution of the command: started, measured, watched and ended, while its trial's lease is renewed."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from wattwise import v1
from wattwise.driver.files import writing
from wattwise.driver.interruption import InterruptedRunError, Interruption
from wattwise.driver.outcome import ENDED, OUTPUT, RUNNING, LaunchOutcome, has_client
from wattwise.driver.process import Process
from wattwise.errors import JobNotFoundError, TrialNotFoundError, WattwiseError, log
from wattwise.training.rules import cost
from wattwise.training.session import BEATS_PER_LEASE
from wattwise.training.windows import TrainingWindows, monitor_message

if TYPE_CHECKING:
    from typing_extensions import Self

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
    """

    trial: v1.TrialId
    spec: v1.JobSpec
    command: tuple[str, ...]
    environment: Mapping[str, str]
    workdir: Path
    folder: Path
    grace_seconds: float
    lock: int
    checks_cost: bool

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
        name = f"wattwise run {self.trial.job_id} {self.trial.trial_number}"
        windows = TrainingWindows(monitor, name, self.spec.gpu.max_power_watts, weighs_energy=self.spec.eta_knob > 0)
        windows.open()
        self._outcome(RUNNING, windows).save(self.folder)
        process = self._start()
        interruption.on_repeat = process.kill
        over_cost_bound, interrupted = False, None
        try:
            with LeaseKeeper(client, self.trial, self.spec.trial_lease_seconds) as lease:
                over_cost_bound = self._watch(process, lease, windows, client, refresh)
        except InterruptedRunError as error:
            interrupted = error
        finally:
            status = process.end()
            windows.close()
            refresh()
        return replace(self._outcome(status, windows), over_cost_bound=over_cost_bound), interrupted

    def _start(self) -> Process:
        path = self.folder / OUTPUT
        with writing(path):
            output = path.open("ab")
        with output:
            return Process(
                self.command,
                environment=self.environment,
                folder=self.workdir,
                output=output,
                grace_seconds=self.grace_seconds,
                lock=self.lock,
                ended=self.folder / ENDED,
            )

    def _outcome(self, status: int, windows: TrainingWindows) -> LaunchOutcome:
        return LaunchOutcome(status, windows.time_seconds, windows.energy_joules, monitor=windows.monitor)

    def _watch(
        self,
        process: Process,
        lease: LeaseKeeper,
        windows: TrainingWindows,
        client: Client,
        refresh: Callable[[], None],
    ) -> bool:
        """Waits until the command has ended; returns whether it was stopped for its cost."""
        save_at = time.monotonic() + _SHORTEST_SAVE_SECONDS
        check_at = time.monotonic() + _COST_CHECK_SECONDS
        stopping = over_cost_bound = False
        while process.wait(_POLL_SECONDS) is None:
            refresh()
            if time.monotonic() >= save_at:
                windows.close()
                windows.reopen()
                self._outcome(RUNNING, windows).save(self.folder)
                save_at = time.monotonic() + max(_SHORTEST_SAVE_SECONDS, _SAVE_SHARE * windows.time_seconds)
            # A client in the command learns of a stop itself, and may have work to finish, such as saving a model.
            if stopping or lease.reported or has_client(self.folder):
                continue
            if self.checks_cost and lease.cost_bound is not None and time.monotonic() >= check_at:
                check_at = time.monotonic() + _COST_CHECK_SECONDS
                over_cost_bound = self._exceeds(lease.cost_bound, windows, client)
            if lease.stopped or over_cost_bound:
                stopping = True
                process.terminate()
        return over_cost_bound

    def _exceeds(self, cost_bound: float, windows: TrainingWindows, client: Client) -> bool:
        """Reports a cost above the bound; returns whether the server stops the trial for it."""
        windows.close()
        windows.reopen()
        if cost(self.spec, windows.time_seconds, windows.energy_joules) <= cost_bound:
            return False
        result = v1.TrainingResult(
            trial=self.trial,
            time_seconds=windows.time_seconds,
            energy_joules=windows.energy_joules,
            metric=math.nan,
            current_epoch=1,
            monitor=monitor_message(windows.monitor),
        )
        try:
            return client.report_result(result).stop_train
        except WattwiseError as error:
            # The lease keeper warns of a server that is away.
            log.debug("cost of trial %d not reported: %s", self.trial.trial_number, error)
            return False


class LeaseKeeper:
    """Sends heartbeats from a thread within its block.

    Args:
        client: does not retry calls.
        trial: the trial.
        lease_seconds: its lease; 0 never expires.

    Attributes:
        stopped: the server has stopped the trial.
        reported: results of the trial have been reported.
        cost_bound: the cost above which the trial is stopped, in joules; None if there is no bound yet.
    """

    def __init__(self, client: Client, trial: v1.TrialId, lease_seconds: float) -> None:
        self.stopped = False
        self.reported = False
        self.cost_bound: float | None = None
        self._client = client
        self._trial = trial
        interval = min(lease_seconds / BEATS_PER_LEASE, _LONGEST_HEARTBEAT_SECONDS)
        self._interval = interval or _LONGEST_HEARTBEAT_SECONDS
        self._over = threading.Event()
        self._server_away = False
        self._thread = threading.Thread(target=self._renew, name="wattwise-lease", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        # The thread is not joined: it may be in a call to a server that does not answer.
        self._over.set()

    def _renew(self) -> None:
        while not self._over.is_set() and not self.stopped:
            try:
                decision = self._client.heartbeat(self._trial)
            except (JobNotFoundError, TrialNotFoundError) as error:
                # Its database was lost or restored: the trial is delivered when it has ended.
                log.warning("%s; training continues", error)
                return
            except WattwiseError as error:
                if not self._server_away and not self._over.is_set():
                    self._server_away = True
                    log.warning("%s; training continues", error)
            else:
                self._server_away = False
                self.reported = self.reported or decision.cost > 0
                self.cost_bound = decision.cost_bound if decision.HasField("cost_bound") else None
                self.stopped = decision.stop_train
            self._over.wait(self._interval)
