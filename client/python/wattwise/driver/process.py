"""A command that runs under its driver and never outlives it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from wattwise.driver import child

_LEEWAY_SECONDS = 5.0
"""What the kernel gets to end what was killed."""


class Process:
    """A command in a process group of its own, which dies with this process even if that is killed.

    Args:
        command: the program and its arguments.
        environment: its variables.
        folder: where it runs.
        output: where its standard output goes; its errors too unless `errors` is given.
        errors: where its standard error goes.
        grace_seconds: how long it may take to end once it is asked to; then it is killed.
        lock: a descriptor whose lock is to stay taken for as long as something of the command may run.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        environment: Mapping[str, str],
        folder: Path,
        output: IO[bytes] | int,
        errors: IO[bytes] | int = subprocess.STDOUT,
        grace_seconds: float,
        lock: int,
    ) -> None:
        self._grace_seconds = grace_seconds
        reading, self._alive = os.pipe()
        try:
            self._process = subprocess.Popen(  # noqa: S603 - the user's command is what this is for
                # Without site packages and variables of Python's, none of which it needs and all of which take time.
                [sys.executable, "-I", "-S", child.__file__, str(reading), str(grace_seconds), str(lock), *command],
                env=dict(environment),
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=errors,
                pass_fds=(reading, lock),
                # Ctrl-C reaches the driver alone, which ends the command in order.
                start_new_session=True,
            )
        except BaseException:
            os.close(self._alive)
            raise
        finally:
            os.close(reading)

    @property
    def output(self) -> IO[bytes]:
        """Its standard output, where that is a pipe."""
        if self._process.stdout is None:
            raise ValueError("the output goes elsewhere")
        return self._process.stdout

    def status(self) -> int | None:
        """Its exit status, 128 + N if a signal N ended it; None while it runs."""
        return self._process.poll()

    def wait(self, seconds: float) -> int | None:
        """Waits for its end at most so long; returns the exit status, or None if it still runs."""
        try:
            return self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None

    def ask_to_end(self) -> None:
        """Sends SIGTERM to the whole group, and SIGKILL when its grace is over."""
        with contextlib.suppress(ProcessLookupError):
            self._process.terminate()

    def kill(self) -> None:
        """Kills the whole group at once."""
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGUSR1)

    def end(self) -> int:
        """Ends it: asks, waits and at last kills; returns the exit status."""
        if self._process.poll() is None:
            self.ask_to_end()
        if self.wait(self._grace_seconds + _LEEWAY_SECONDS) is None:
            self._process.kill()
        status = self._process.wait()
        self.close()
        return status

    def close(self) -> None:
        """Lets go of what belongs to it; what still runs is ended."""
        if self._alive >= 0:
            os.close(self._alive)
            self._alive = -1
        if self._process.stdout is not None:
            self._process.stdout.close()
