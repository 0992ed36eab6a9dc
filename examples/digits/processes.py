"""Child processes that never outlive the demo."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

HOUSE = Path(__file__).parents[2]
PATIENCE_SECONDS = 15.0
"""What a child gets to finish what it does; a server answers the calls in flight, a trainer gives up its trial."""


class StoppedError(Exception):
    """The demo was told to stop by a signal."""

    def __init__(self, number: int) -> None:
        super().__init__(f"stopped by {signal.Signals(number).name}")
        self.status = 128 + number


def stop_on_signals() -> None:
    """Makes Ctrl-C, SIGTERM and a closed terminal raise `StoppedError`, so that the children are ended in order."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        # What is ignored stays ignored: that is how nohup works.
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, _stop)


@contextmanager
def child(module: str, *arguments: str, log: int | None = None) -> Iterator[subprocess.Popen[str]]:
    """Runs a module with its output on a pipe, and its errors too when `log` says so; ends it with the block.

    It has a session of its own: Ctrl-C reaches the demo alone, which ends the trainer before the server.
    """
    # One thread, so that a trial's time says what it computed and not what else the machine did.
    settings = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    # Found from any folder, while relative paths in the arguments stay the caller's.
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
        # Does nothing to a child that has ended; for the others patience is over, or whoever presses Ctrl-C again.
        process.kill()


def _stop(number: int, _frame: FrameType | None) -> None:
    raise StoppedError(number)
