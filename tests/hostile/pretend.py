"""The example of a training loop for the Python client, with simulated epochs.

Called as `python -m tests.hostile.pretend ADDRESS [SECONDS PER EPOCH [SECONDS OF LEASE]]`, like those of the other
languages, with the same job. It trains until a model reaches its target, at most five times, also without a server, and
exits with 0 if one did, and with 3 if none did.
"""

from __future__ import annotations

import math
import sys
import time

from wattwise import BatchSizeOptimizer, GpuGroup, JobSpec
from wattwise.errors import TrainFailError, WattwiseError
from wattwise.monitor import Window


class Simulated:
    """Large batches are fast, and every epoch draws 250 W."""

    gpu_indices = (0,)
    kind = "estimate"

    def __init__(self) -> None:
        self.batch_size = 1

    def begin_window(self, name: str) -> None:
        """Opens a window."""

    def end_window(self, name: str) -> Window:
        """Closes the window."""
        del name
        seconds = 20 + 2000 / self.batch_size
        return Window(time=seconds, total_energy=250 * seconds)


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")


def main(address: str, pace: float = 0.0, lease: float = 300.0) -> int:
    """Returns the exit status."""
    monitor = Simulated()
    job = JobSpec(
        job_id="pretend-nightly",
        job_id_prefix="pretend",
        batch_sizes=[16, 32, 64, 128],
        default_batch_size=32,
        target_metric=0.9,
        trial_lease_seconds=lease,
        gpu=GpuGroup(gpu_model="Simulated GPU", count=1, max_power_watts_per_gpu=300),
    )
    bso = BatchSizeOptimizer(address, job, monitor=monitor, timeout=3, report_timeout=2, fallback="default")
    with bso:
        try:
            for attempt in bso.attempts(5):
                monitor.batch_size = attempt.batch_size
                _say(f"batch size {attempt.batch_size}: {attempt.trial.reason}")
                for epoch in attempt.epochs():
                    time.sleep(pace)
                    attempt.on_evaluate(1 - math.exp(-epoch * 4 / math.sqrt(attempt.batch_size)))
        except WattwiseError as error:
            _say(str(error))
            return 3 if isinstance(error, TrainFailError) else 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], *map(float, sys.argv[2:4])))
