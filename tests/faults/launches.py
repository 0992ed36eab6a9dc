"""Launches of one job by the real client, in processes of their own.

`python -m tests.faults.launches ADDRESS JOB JOULES` reads a metric per line, trains an epoch with it and answers with a
line. At the end of its input it ends its trial. Every epoch of a launch uses the same energy, which no other launch
uses: so its measurements are known.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING, NamedTuple

from wattwise import BatchSizeOptimizer, Client, v1
from wattwise.monitor import Window

from tests.client.training.script import job_spec

if TYPE_CHECKING:
    from typing_extensions import Self


class _Joules:
    """A monitor whose windows all have the same energy."""

    gpu_indices = (0,)

    def __init__(self, joules: float) -> None:
        self._joules = joules
        self._begun: dict[str, float] = {}

    def begin_window(self, name: str) -> None:
        """Opens a window."""
        self._begun[name] = time.monotonic()

    def end_window(self, name: str) -> Window:
        """Closes the window."""
        return Window(time=time.monotonic() - self._begun.pop(name), total_energy=self._joules)


class Launch:
    """A launch that runs.

    Attributes:
        launch_id: The id of the launch.
        number: That of its trial, as the server gave it.
        joules: The energy of each of its epochs.
        epochs: How many epochs it has trained.
        stopped: Whether the client said that the training is finished.
        log: What the process wrote to its standard error; known once it has ended.
    """

    def __init__(self, address: str, job_id: str, joules: float) -> None:
        self.joules, self.epochs, self.stopped, self.log = joules, 0, False, ""
        command = [sys.executable, "-m", __name__, address, job_id, str(joules)]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True)
        self.launch_id, number = self._answer().split()
        self.number = int(number)

    def train(self, epochs: int = 1, metric: float = 0.1) -> Self:
        """Trains some epochs."""
        assert self._process.stdin is not None
        for _ in range(epochs):
            assert not self.stopped
            self._process.stdin.write(f"{metric}\n")
            self._process.stdin.flush()
            self.epochs += 1
            self.stopped = self._answer() == "finished"
        return self

    def reach(self) -> None:
        """Trains a last epoch, which reaches the target, and ends."""
        assert self.train(metric=0.95).stopped
        _, self.log = self._process.communicate(timeout=60)
        assert self._process.returncode == 0, self.log

    def used(self, *epochs: int) -> Mapping[int, float]:
        """What its trial used up to some epochs."""
        return {epoch: self.joules * epoch for epoch in epochs}

    def kill(self) -> None:
        """Kills the process, if it runs."""
        self._process.kill()
        self._process.communicate()

    def _answer(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, self._process.communicate()[1]
        return line.rstrip("\n")


class Stored(NamedTuple):
    """What a server has of a trial.

    Attributes:
        trial: The trial.
        energy: What was used up to each of its epochs.
    """

    trial: v1.Trial
    energy: Mapping[int, float]


class Launches(ExitStack):
    """Launches of one job; leaving the context kills those that still run."""

    def __init__(self, address: str, job_id: str) -> None:
        super().__init__()
        self.address, self.job_id = address, job_id
        self._number = 0

    def begin(self) -> Launch:
        """Begins another launch."""
        self._number += 1
        launch = Launch(self.address, self.job_id, float(2 * self._number + 1))
        self.callback(launch.kill)
        return launch

    def trials(self) -> dict[str, Stored]:
        """The trials that the server has, by the id of their launch."""
        with Client(self.address) as client:
            return {
                trial.id.launch_id: Stored(
                    trial, {each.epoch: each.energy_joules for each in client.measurements(trial.id)}
                )
                for trial in client.trials(self.job_id)
            }


def main(address: str, job_id: str, joules: str) -> None:
    """Trains."""
    spec = job_spec(job_id=job_id, max_epochs=1000)
    bso = BatchSizeOptimizer(address, spec, monitor=_Joules(float(joules)))
    bso.get_batch_size()
    bso.on_train_begin()
    trial = bso.trial
    _answer(f"{trial.launch_id} {trial.number}")
    for line in sys.stdin:
        bso.on_evaluate(float(line))
        _answer("finished" if bso.training_finished else "on")
    bso.close()


def _answer(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
