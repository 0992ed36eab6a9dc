"""A program on a pseudo-terminal of a given width."""

from __future__ import annotations

import contextlib
import os
import pty
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence

from tests.forking import ForkedProcess

_CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def wattwise(*words: str, missing: Sequence[str] = ()) -> list[str]:
    """The command line of `wattwise` in which some packages are not installed."""
    hide = f"import sys; sys.modules.update(dict.fromkeys({tuple(missing)!r}))"
    return [sys.executable, "-c", f"{hide}; from wattwise.commands.main import main; sys.exit(main())", *words]


def on_terminal(
    words: Sequence[str],
    columns: int = 80,
    environment: Mapping[str, str] | None = None,
    missing: Sequence[str] = (),
) -> tuple[int, str]:
    """Returns the exit status of `wattwise`, and all that it wrote to the terminal, stderr too, with line feeds alone.

    Headings are not bold unless `environment` has another NO_COLOR.
    """
    ours, theirs = pty.openpty()
    surroundings = {**os.environ, "COLUMNS": str(columns), "NO_COLOR": "1", **(environment or {})}
    with os.fdopen(ours, "rb", buffering=0) as terminal:
        process = _started(words, missing, theirs, surroundings)
        os.close(theirs)
        written = b""
        # The terminal of a process that has ended raises EIO.
        with contextlib.suppress(OSError):
            while part := terminal.read(4096):
                written += part
        return process.wait(), written.decode().replace("\r\n", "\n")


def _started(
    words: Sequence[str], missing: Sequence[str], terminal: int, environment: Mapping[str, str]
) -> subprocess.Popen[bytes] | ForkedProcess:
    if missing:
        command = wattwise(*words, missing=missing)
        return subprocess.Popen(command, stdin=terminal, stdout=terminal, stderr=terminal, env=environment)
    return ForkedProcess(*words, environment=environment, stdin=terminal, stdout=terminal, stderr=terminal)


def plain_lines(written: str) -> list[str]:
    """The lines of what was written, also of what was overwritten later, without control sequences."""
    return [part for line in _CONTROL.sub("", written).split("\n") for part in line.split("\r")]
