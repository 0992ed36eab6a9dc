"""A training on stub GPUs with power limits; `python -m tests.client.power.training ADDRESS FILE END STEPS` runs one.

The stub's GPUs have limits from 100 W to 250 W and start at 200 W. Each step adds the table's energy for the present
limit to their counters. Eta is 1, so that costs are energies.
"""

from __future__ import annotations

import logging
import math
import signal
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from wattwise import BatchSizeOptimizer, Client, JobSpec, NvmlMonitor, PowerLimitOptimizer, rules, v1
from wattwise.monitor import Monitor, gpu_monitor

from tests.client.monitor.nvml_stub import Machine, StubGpu
from tests.client.training.script import job_spec

GPUS = (StubGpu(uuid="GPU-aaaa"), StubGpu(uuid="GPU-bbbb"))
BEFORE = [200.0, 200.0]
VALLEY = {250: 60.0, 225: 50.0, 200: 40.0, 175: 30.0, 150: 35.0, 125: 45.0, 100: 20.0}
"""Joules of a step on one GPU by its limit; the cheapest limit that a walk visits is 175 W."""

VISITED = [250.0, 225.0, 200.0, 175.0, 150.0, 125.0]
WARMUP, MEASURED = 2, 3
WALK_STEPS = len(VISITED) * (WARMUP + MEASURED)


def job_id_of(machine: Machine) -> str:
    """The job of a test: the machine is the test's own, the server is shared."""
    return f"power-{machine.file.parent.name}"


def power_job(job_id: str) -> JobSpec:
    """A job of two GPUs."""
    return job_spec(job_id=job_id, job_id_prefix="power", max_epochs=100)


def limits(machine: Machine) -> list[float]:
    """The present limit of each GPU, in watts."""
    files = [Path(f"{machine.file}.limit.{gpu.uuid}") for gpu in GPUS]
    return [int(file.read_text()) / 1e3 if file.exists() else 200.0 for file in files]


def sets(machine: Machine) -> list[tuple[str, float]]:
    """Every limit that was set, with its GPU, in watts."""
    file = Path(f"{machine.file}.sets")
    lines = file.read_text().splitlines() if file.exists() else []
    return [(uuid, int(mw) / 1e3) for uuid, mw in (line.split("\t") for line in lines)]


def visited(machine: Machine) -> list[float]:
    """The limits of the first GPU in order, without repetitions."""
    watts = [watts for uuid, watts in sets(machine) if uuid == "GPU-aaaa"]
    return [new for old, new in zip([0.0, *watts], watts, strict=False) if new != old]


def refuse_limits(machine: Machine) -> None:
    """Makes the stub reject new limits from now on."""
    Path(f"{machine.file}.readonly").touch()


class Training:
    """A trial on two GPUs, trained step by step, in a process of its own."""

    def __init__(
        self,
        machine: Machine,
        address: str,
        table: Mapping[int, float] = VALLEY,
        job_id: str = "",
        monitor: Callable[[], Monitor] = NvmlMonitor,
        **arguments: Any,
    ) -> None:
        # The stub's counters are exact, and its steps take no time.
        gpu_monitor.COUNTER_SECONDS = 0.0
        rules.POWER_FACTOR = math.inf
        self.machine = machine
        self._address = address
        self.table = table
        self.used = [0.0, 0.0]
        self._show()
        spec = power_job(job_id or job_id_of(machine))
        self.bso = BatchSizeOptimizer(address, spec, monitor=monitor())
        defaults: dict[str, Any] = {"profile_warmup_iters": WARMUP, "profile_measure_iters": MEASURED}
        self.plo = PowerLimitOptimizer(self.bso, **(defaults | arguments))
        self.bso.get_batch_size()
        self.bso.on_train_begin()

    def step(self, extra: float = 0.0) -> None:
        """One training step; it uses the table's energy and `extra` joules."""
        self.plo.on_step_begin()
        self.use(*(self.table[round(watts)] + extra for watts in limits(self.machine)))
        self.plo.on_step_end()

    def steps(self, count: int) -> None:
        """Trains this many steps."""
        for _ in range(count):
            self.step()

    def use(self, *joules: float) -> None:
        """Adds to the GPUs' counters."""
        self.used = [used + more for used, more in zip(self.used, joules, strict=True)]
        self._show()

    def known(self) -> list[v1.PowerLimit]:
        """The limits that the server knows for the job."""
        with Client(self._address) as client:
            return list(client.get_job(self.bso.trial.job_id).details.power_limits)

    def _show(self) -> None:
        self.machine.show(*(replace(g, energy_mj=round(1e3 * j)) for g, j in zip(GPUS, self.used, strict=True)))


def log_lines(level: int = logging.WARNING) -> list[str]:
    """A list that receives the messages that this process logs from now on."""
    lines: list[str] = []
    handler = logging.Handler(level)
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("wattwise")
    logger.addHandler(handler)
    logger.setLevel(level)
    return lines


def _crash(_: Training) -> None:
    raise RuntimeError("a bug in the training")


def _return(_: Training) -> None:
    return


def _wait(_: Training) -> None:
    while True:
        time.sleep(0.05)


def _leave_the_block(training: Training) -> None:
    with training.plo:
        pass
    sys.stdout.write(f"{limits(training.machine)}\n")


def _go_on(training: Training) -> None:
    for _ in sys.stdin:
        training.steps(WALK_STEPS)
        training.plo.on_epoch_end()
        sys.stdout.write(f"{limits(training.machine)}\n")
        sys.stdout.flush()


ENDS: dict[str, Callable[[Training], None]] = {
    "crash": _crash,
    "return": _return,
    "wait": _wait,
    "own-handler": _wait,
    "leave-block": _leave_the_block,
    "go-on": _go_on,
}


def main(address: str, file: str, end: str, steps: str) -> None:
    """Trains some steps and ends in the named way."""
    if end == "own-handler":
        signal.signal(signal.SIGTERM, lambda _number, _frame: sys.exit(7))
    if end == "go-on":
        signal.signal(signal.SIGTERM, lambda _number, _frame: None)
    training = Training(Machine(Path(file)), address)
    training.steps(int(steps))
    sys.stdout.write(f"{limits(training.machine)}\n")
    sys.stdout.flush()
    ENDS[end](training)


if __name__ == "__main__":
    main(*sys.argv[1:])
