"""One rank of a training: `python -m tests.client.integrations.rank TRAINER ADDRESS HOW`.

It runs with torchrun's variables. HOW says who connects the ranks: "program" or "callback"; with "late" it is the
program, and rank 1 waits for a line before its first `on_evaluate`.
"""

from __future__ import annotations

import importlib
import os
import sys

import torch.distributed as dist
from wattwise import BatchSizeOptimizer
from wattwise.training import arrivals

from tests.client.integrations.script import Script, disconnect
from tests.client.training.rank import make_late
from tests.client.training.script import StepMonitor, job_spec


def main(trainer: str, address: str, how: str) -> None:
    """Trains, and prints the sizes of its steps."""
    if how != "callback":
        dist.init_process_group("gloo")
    # The ranks have different metrics; rank 0's counts, or their mean if the trainer is set up so.
    script = Script(iter([0.1, 0.5, 0.95, 0.99] if os.environ["RANK"] == "0" else [0.1, 0.5, 0.93, 0.99]))
    bso = BatchSizeOptimizer(address, job_spec(job_id=f"test-ranks-{trainer}"), monitor=StepMonitor())
    if how == "late":
        arrivals.WARN_SECONDS = 0.0
        if os.environ["RANK"] == "1":
            make_late(bso, "on_evaluate")
    importlib.import_module(f"tests.client.integrations.{trainer}").fit(bso, script)
    sys.stdout.write(f"{script.sizes}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
    disconnect()
