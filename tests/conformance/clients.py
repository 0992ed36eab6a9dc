"""The clients of all languages: what they need, their runners, and what these say."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]

Scenario = tuple[str, str]
"""A scenario's file and name."""


class ConformanceError(Exception):
    """The suite cannot go on; the message says why."""


class Outcome(NamedTuple):
    """How a scenario went in one language."""

    how: str
    why: str


class Client:
    """A client's folder below `client/`: its Makefile has the targets `runner` and `test`.

    It may have a target `needed`, which fails while something from outside is missing, and then a target `provide` that
    brings it into the folder, or a variable `DEBIAN` with the packages that bring it.
    """

    def __init__(self, folder: Path) -> None:
        self.name = folder.name
        self._folder = folder

    def build(self) -> None:
        """Makes the runner, and installs what that needs if it may.

        Raises:
            ConformanceError: if there is no runner afterwards.
        """
        if self._make("--question", "runner").returncode:
            self._provide()
        done = self._make("runner")
        if done.returncode:
            raise ConformanceError(f"the runner of {self.name} cannot be built:\n{done.stdout}{done.stderr}")

    def run(self, server: str, tables: Sequence[Path]) -> dict[Scenario, Outcome]:
        """Replays tables.

        Raises:
            ConformanceError: if the runner did not keep to its contract.
        """
        command: list[str | Path] = [self._folder / "build" / "runner", "--server", server, *tables]
        done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
        try:
            lines = [json.loads(line) for line in done.stdout.splitlines()]
            said = {(line["file"], line["scenario"]): Outcome(line["outcome"], line["why"]) for line in lines}
        except (ValueError, KeyError, TypeError):
            raise ConformanceError(f"the runner of {self.name} printed no outcomes: {done.stdout[-500:]!r}") from None
        if len(said) < len(lines):
            raise ConformanceError(f"the runner of {self.name} printed a scenario twice")
        failed = any(outcome.how == "failed" for outcome in said.values())
        if done.returncode != int(failed):
            raise ConformanceError(f"the runner of {self.name} left with {done.returncode}: {done.stderr[-2000:]}")
        return said

    def _provide(self) -> None:
        makefile = (self._folder / "Makefile").read_text()
        if "needed" not in makefile or not self._make("needed").returncode:
            return
        if "\nprovide:" in makefile:
            # If it fails, so does the runner, which then says what is missing.
            self._make("provide")
            return
        packages = self._make("--eval=debian-packages: ; @echo $(DEBIAN)", "debian-packages").stdout.split()
        if packages and os.geteuid() == 0 and shutil.which("apt-get"):
            _apt_get(packages)

    def _make(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = ["make", "--no-print-directory", "-C", str(self._folder), *arguments]
        # Of a make that called this one, nothing is to be inherited.
        environment = {k: v for k, v in os.environ.items() if k not in ("MAKEFLAGS", "MFLAGS", "MAKELEVEL")}
        return subprocess.run(command, capture_output=True, text=True, env=environment, check=False)


def clients() -> list[Client]:
    """Every client that has a runner, by name."""
    return [Client(makefile.parent) for makefile in sorted((ROOT / "client").glob("*/Makefile"))]


def _apt_get(packages: list[str]) -> None:
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for command in (["update"], ["install", "--yes", "--no-install-recommends", *packages]):
        done = subprocess.run(["apt-get", "-q", *command], capture_output=True, text=True, env=environment, check=False)
        if done.returncode:
            raise ConformanceError(f"apt-get {command[0]} failed: {done.stderr[-2000:]}")
