"""One life of the command: started, measured, watched and ended."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from wattwise import v1
from wattwise.driver.interruption import InterruptedRunError, Interruption
from wattwise.driver.lease import Lease
from wattwise.driver.outcome import Outcome
from wattwise.driver.process import Process
from wattwise.errors import WattwiseError, log
from wattwise.training.joined import JOINED
from wattwise.training.rules import cost
from wattwise.training.windows import TrainingWindows

if TYPE_CHECKING:
    from wattwise.monitor import Monitor
    from wattwise.rpc.client import Client

OUTPUT = "output.log"
_LOOK_SECONDS = 0.1
_PRICE_SECONDS = 1.0


@dataclass(frozen=True)
class Training:
    """A command that is about to train a trial.

    Attributes:
        trial: the trial.
        spec: its job, resolved.
        command: the words.
        environment: all variables.
        workdir: where it runs.
        folder: the trial's folder.
        grace_seconds: how long it may take to end once it is asked to.
        lock: what stays locked for as long as any of it runs.
        is_priced: whether it is stopped when its cost, as seen from outside, is beyond the trial's bound.
    """

    trial: v1.TrialId
    spec: v1.JobSpec
    command: tuple[str, ...]
    environment: Mapping[str, str]
    workdir: Path
    folder: Path
    grace_seconds: float
    lock: int
    is_priced: bool

    def run(
        self, client: Client, monitor: Monitor, interruption: Interruption, look: Callable[[], None]
    ) -> tuple[Outcome, InterruptedRunError | None]:
        """Runs the command to its end.

        Args:
            client: for calls that are not repeated.
            monitor: the driver's monitor.
            interruption: what a second Ctrl-C does is set here.
            look: called several times a second.

        Returns:
            How it ended, and what told the driver to stop meanwhile, if anything did.
        """
        name = f"wattwise run {self.trial.job_id} {self.trial.trial_number}"
        windows = TrainingWindows(monitor, name, self.spec.gpu.max_power_watts)
        windows.open()
        process = self._start()
        interruption.again = process.kill
        too_dear, stop = False, None
        try:
            with Lease(client, self.trial, self.spec.trial_lease_seconds) as lease:
                too_dear = self._watch(process, lease, windows, client, look)
        except InterruptedRunError as told:
            stop = told
        finally:
            status = process.end()
            windows.close()
            look()
        return Outcome(status, windows.time_seconds, windows.energy_joules, too_dear, windows.monitor), stop

    @property
    def has_client(self) -> bool:
        """Whether a client in the command has said that it is there."""
        return (self.folder / JOINED).exists()

    def _start(self) -> Process:
        with (self.folder / OUTPUT).open("ab") as output:
            return Process(
                self.command,
                environment=self.environment,
                folder=self.workdir,
                output=output,
                grace_seconds=self.grace_seconds,
                lock=self.lock,
            )

    def _watch(
        self, process: Process, lease: Lease, windows: TrainingWindows, client: Client, look: Callable[[], None]
    ) -> bool:
        """Waits for the end; returns whether the command was stopped for its cost."""
        price_at = time.monotonic() + _PRICE_SECONDS
        told = too_dear = False
        while process.wait(_LOOK_SECONDS) is None:
            look()
            # A client in the command hears of a stop by itself, and may have things to finish, such as saving a model.
            if told or lease.reported or self.has_client:
                continue
            if self.is_priced and lease.cost_bound is not None and time.monotonic() >= price_at:
                price_at = time.monotonic() + _PRICE_SECONDS
                too_dear = self._is_too_dear(lease.cost_bound, windows, client)
            if lease.stopped or too_dear:
                told = True
                process.ask_to_end()
        return too_dear

    def _is_too_dear(self, bound: float, windows: TrainingWindows, client: Client) -> bool:
        """Whether the server stops the trial because it has cost too much already, whatever its metric will be."""
        windows.close()
        windows.reopen()
        if cost(self.spec, windows.time_seconds, windows.energy_joules) <= bound:
            return False
        result = v1.TrainingResult(
            trial=self.trial,
            time_seconds=windows.time_seconds,
            energy_joules=windows.energy_joules,
            metric=math.nan,
            current_epoch=1,
            monitor=windows.monitor,
        )
        try:
            return client.report_result(result).stop_train
        except WattwiseError as error:
            # The lease warns of a server that is away.
            log.debug("the server was not told that trial %d is too dear: %s", self.trial.trial_number, error)
            return False
