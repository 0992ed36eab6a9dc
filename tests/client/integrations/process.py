"""A training in its own process: `python -m tests.client.integrations.process TRAINER ADDRESS JOB END`."""

from __future__ import annotations

import importlib
import itertools
import sys
import time

import torch
from wattwise import BatchSizeOptimizer

from tests.client.integrations.script import Script
from tests.client.training.script import StepMonitor, job_spec


def main(trainer: str, address: str, job_id: str, end: str) -> None:
    """Trains to the third step, prints a line, and ends in the given way."""

    def in_step() -> None:
        if len(script.sizes) < 3:
            return
        sys.stdout.write("in a step\n")
        sys.stdout.flush()
        while end == "wait":
            time.sleep(0.05)
        raise torch.OutOfMemoryError("no room")

    script = Script(itertools.repeat(0.1), in_step=in_step)
    bso = BatchSizeOptimizer(address, job_spec(job_id=job_id), monitor=StepMonitor())
    importlib.import_module(f"tests.client.integrations.{trainer}").fit(bso, script)


if __name__ == "__main__":
    main(*sys.argv[1:])
