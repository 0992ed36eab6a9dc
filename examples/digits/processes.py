"""Child processes that end with the demo."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import IO

HOUSE = Path(__file__).parents[2]
PATIENCE_SECONDS = 15.0
"""Time for a child to end: a server completes calls in flight, a trainer ends its trial."""


class StoppedError(Exception):
    """A signal stopped the demo."""

    def __init__(self, number: int) -> None:
        super().__init__(f"stopped by {signal.Signals(number).name}")
        self.status = 128 + number


def stop_on_signals() -> None:
    """Makes Ctrl-C, SIGTERM and a closed terminal raise `StoppedError`, so that children are ended in order."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        # What is ignored stays ignored: that is how nohup works.
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, _stop)


@contextmanager
def child(module: str, *arguments: str, log: int | IO[str] | None = None) -> Iterator[subprocess.Popen[str]]:
    """Runs a module within the block, with stdout on a pipe, and stderr in `log`.

    It runs in a new session: Ctrl-C reaches only the demo, which ends the trainer before the server.
    """
    # One thread, so that a trial's time depends less on other load of the machine.
    settings = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    # The module is found from any working directory, and relative paths in the arguments stay valid.
    settings["PYTHONPATH"] = os.pathsep.join(filter(None, (str(HOUSE), settings.get("PYTHONPATH"))))
    process = subprocess.Popen(
        [sys.executable, "-m", module, *arguments],
        stdout=subprocess.PIPE,
        stderr=log,
        text=True,
        env=settings,
        start_new_session=True,
    )
    with process:
        try:
            yield process
        finally:
            _end(process)


def _end(process: subprocess.Popen[str]) -> None:
    process.terminate()
    try:
        process.wait(PATIENCE_SECONDS)
    except subprocess.TimeoutExpired:
        pass
    finally:
        # Has no effect on a child that has ended; others have had their time, or Ctrl-C was pressed again.
        process.kill()


def _stop(number: int, _frame: FrameType | None) -> None:
    raise StoppedError(number)
