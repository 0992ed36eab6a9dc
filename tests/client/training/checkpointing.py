"""A training with checkpoints: `python -m tests.client.training.checkpointing ADDRESS FILE`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from wattwise import BatchSizeOptimizer

from tests.client.training.script import StepMonitor, job_spec


def main(address: str, file: str) -> None:
    """Continues from the checkpoint if there is one; prints each epoch and waits for a line before its evaluation."""
    checkpoint = Path(file)
    bso = BatchSizeOptimizer(address, job_spec(job_id="test-checkpoints"), monitor=StepMonitor())
    if checkpoint.exists():
        bso.load_state_dict(json.loads(checkpoint.read_text()))
    bso.get_batch_size()
    for epoch in bso.epochs():
        _print(f"trial {bso.trial.number} epoch {epoch}")
        sys.stdin.readline()
        bso.on_evaluate(0.2 * epoch)
        if epoch % 2 == 0:
            checkpoint.write_text(json.dumps(bso.state_dict()))
    _print("target reached" if bso.target_reached else "target missed")


def _print(what: str) -> None:
    sys.stdout.write(f"{what}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
