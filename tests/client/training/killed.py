"""A training that is killed: `python -m tests.client.training.killed ADDRESS JOB [--lines] [--patient]`.

Prints a line for its trial and for every epoch as soon as `on_evaluate` has returned. With `--lines` it waits for a
line before each evaluation; without, it trains as fast as it can. With `--patient` it waits for the server instead of
falling back.
"""

from __future__ import annotations

import sys
import time

from wattwise import BatchSizeOptimizer
from wattwise.errors import TrainFailError

from tests.client.training.script import StepMonitor, job_spec

EPOCHS = 12
"""Epochs after which the target is reached."""


def main(address: str, job_id: str, *options: str) -> None:
    """Trains until the target."""
    spec = job_spec(job_id=job_id, max_epochs=50, beta_knob="off")
    patient = "--patient" in options
    timeout, fallback = (60.0, None) if patient else (0.5, "default")
    bso = BatchSizeOptimizer(
        address, spec, monitor=StepMonitor(), timeout=timeout, report_timeout=0.5, fallback=fallback
    )
    bso.get_batch_size()
    _print(f"trial {bso.trial.launch_id}")
    try:
        for epoch in bso.epochs():
            if "--lines" in options:
                sys.stdin.readline()
            else:
                time.sleep(0.01)
            bso.on_evaluate(0.95 if epoch >= EPOCHS else 0.1)
            _print(f"epoch {epoch}")
    except TrainFailError as error:
        _print(f"stopped {error}")
    bso.close()
    _print("over")


def _print(what: str) -> None:
    sys.stdout.write(f"{what}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
