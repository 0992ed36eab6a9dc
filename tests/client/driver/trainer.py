"""A command with a client in it: `python -m tests.client.driver.trainer END`, started by a driver."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

from wattwise import BatchSizeOptimizer, Client, EstimateMonitor, PowerLimitOptimizer, v1

END = sys.argv[1]


class RackMonitor(EstimateMonitor):
    """A monitor that the driver does not know."""

    kind = "rack"


def wait_for_go() -> None:
    """Waits until the trial's folder has a file `go`."""
    folder = Path(os.environ["WATTWISE_LOG_DIR"])
    (folder / "waits").touch()
    while not (folder / "go").exists():
        time.sleep(0.02)


def main() -> None:
    """Trains two epochs, of which the second reaches the target, and ends as END says."""
    bso = BatchSizeOptimizer.from_env(monitor=RackMonitor(100) if END == "own-monitor" else None)
    sys.stdout.write(f"batch size {bso.get_batch_size()}\n")
    if END == "forgets":
        return
    if END == "silent":
        Path(os.environ["WATTWISE_LOG_DIR"], "result.json").write_text('{"metric": 0.95, "epochs": 2}')
        return
    bso.on_train_begin()
    if END == "power-limit":
        limits = PowerLimitOptimizer(bso)
        limits.on_step_begin()
        limits.on_step_end()
    if END == "waits-without-a-report":
        wait_for_go()
        return
    bso.on_evaluate(0.5)
    sys.stdout.write("epoch 1\n")
    if END.startswith("preempted") and os.environ["WATTWISE_TRY"] == "1":
        with Client(os.environ["WATTWISE_SERVER"]) as client:
            client.end_trial(bso.trial, v1.END_REASON_PREEMPTED)
        folder = Path(os.environ["WATTWISE_LOG_DIR"])
        (folder / "ended").touch()
        while END == "preempted-waits" and not (folder / "go").exists():
            time.sleep(0.02)
        sys.exit(1)
    if END == "error":
        sys.exit(7)
    if END == "out-of-memory" or (END == "too-large" and bso.get_batch_size() >= 16):
        raise MemoryError
    if END == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if END.startswith("waits"):
        wait_for_go()
    if END.startswith("waits-and-exits-"):
        bso.on_evaluate(0.5)
        sys.exit(int(END[-1]))
    if END == "hang":
        Path(os.environ["WATTWISE_LOG_DIR"], "hangs").touch()
        time.sleep(60)
    bso.on_evaluate(0.95)


if __name__ == "__main__":
    main()
