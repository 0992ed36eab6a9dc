"""A command that never outlives its driver."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from wattwise.driver import supervisor

_KILL_SECONDS = 5.0
"""Time for the kernel to end killed processes."""


class Process:
    """A command in its own process group, under a supervisor that ends it when this process dies.

    Args:
        command: the program and its arguments.
        environment: its environment variables.
        folder: where it runs.
        output: receives its standard output, and its standard error unless `errors` is given.
        errors: receives its standard error.
        grace_seconds: time from SIGTERM to SIGKILL.
        lock: a descriptor whose lock is held as long as any process of the command may run.
        ended: receives its exit status and its seconds if it ends by itself, also if this process has died.
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
        ended: Path | None = None,
    ) -> None:
        self._grace_seconds = grace_seconds
        reading, self._alive = os.pipe()
        try:
            self._process = subprocess.Popen(  # noqa: S603 - the user's command
                # Without site packages and PYTHON* variables: the supervisor needs none, and they take time.
                [
                    sys.executable,
                    "-I",
                    "-S",
                    supervisor.__file__,
                    str(reading),
                    str(grace_seconds),
                    str(lock),
                    "" if ended is None else str(ended.absolute()),
                    *command,
                ],
                env=dict(environment),
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=errors,
                pass_fds=(reading, lock),
                # Ctrl-C reaches only the driver, which ends the command in order.
                start_new_session=True,
            )
        except BaseException:
            os.close(self._alive)
            raise
        finally:
            os.close(reading)

    @property
    def output(self) -> IO[bytes]:
        """Its standard output, if that is a pipe."""
        if self._process.stdout is None:
            raise ValueError("the output is not a pipe")
        return self._process.stdout

    def status(self) -> int | None:
        """Returns its exit status, 128 + N if signal N ended it; None while it runs."""
        return self._process.poll()

    def wait(self, seconds: float) -> int | None:
        """Waits for its end; returns the exit status, or None if it still runs."""
        try:
            return self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None

    def terminate(self) -> None:
        """Sends SIGTERM to the process group, and SIGKILL after the grace period."""
        with contextlib.suppress(ProcessLookupError):
            self._process.terminate()

    def kill(self) -> None:
        """Kills the process group."""
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGUSR1)

    def end(self) -> int:
        """Terminates it if it still runs, waits, and returns the exit status."""
        if self._process.poll() is None:
            self.terminate()
        if self.wait(self._grace_seconds + _KILL_SECONDS) is None:
            self._process.kill()
        status = self._process.wait()
        self.close()
        return status

    def close(self) -> None:
        """Closes its pipes; the supervisor then ends a command that still runs."""
        if self._alive >= 0:
            os.close(self._alive)
            self._alive = -1
        if self._process.stdout is not None:
            self._process.stdout.close()
