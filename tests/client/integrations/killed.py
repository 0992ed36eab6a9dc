"""A training that is killed, then resumed: `python -m tests.client.integrations.killed TRAINER ADDRESS JOB FOLDER`.

Without a checkpoint in the folder the training waits in its sixth step to be killed; with one it continues. With
torchrun's variables it is one of several ranks.
"""

from __future__ import annotations

import importlib
import itertools
import os
import sys
from pathlib import Path

import torch.distributed as dist
from wattwise import BatchSizeOptimizer

from tests.client.integrations.script import Script, disconnect
from tests.client.training.script import StepMonitor, job_spec


def main(trainer: str, address: str, job_id: str, folder: str) -> None:
    """Trains, and prints the sizes of the steps."""
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
    resumed = any(Path(folder).iterdir())

    def in_step() -> None:
        if not resumed and len(script.sizes) == 6:
            sys.stdout.write("in a step\n")
            sys.stdout.flush()
            sys.stdin.readline()

    script = Script(iter([0.5, 0.95]) if resumed else itertools.repeat(0.1), in_step=in_step)
    bso = BatchSizeOptimizer(address, job_spec(job_id=job_id), monitor=StepMonitor())
    importlib.import_module(f"tests.client.integrations.{trainer}").fit_and_save(bso, script, Path(folder))
    sys.stdout.write(f"{script.sizes}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
    disconnect()
