"""The clients of all languages: builds and runs their runners, and installs what they need."""

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
"""File and name of a scenario."""


class ConformanceError(Exception):
    """The suite cannot continue; the message says why."""


class Outcome(NamedTuple):
    """The outcome of a scenario in one language."""

    how: str
    why: str


class Client:
    """A client in a folder below `client/`, whose Makefile has the targets `runner` and `test`.

    It may have a target `needed`, which fails while a tool is missing, with a target `provide`, which downloads
    the tool into the folder, or a variable `DEBIAN` with the packages of the tool.
    """

    def __init__(self, folder: Path) -> None:
        self.name = folder.name
        self._folder = folder

    def build(self) -> None:
        """Builds the runner, and installs missing tools if possible.

        Raises:
            ConformanceError: the build failed.
        """
        if self._make("--question", "runner").returncode:
            self._provide()
        done = self._make("runner")
        if done.returncode:
            raise ConformanceError(f"the runner of {self.name} cannot be built:\n{done.stdout}{done.stderr}")

    def run(self, server: str, tables: Sequence[Path]) -> dict[Scenario, Outcome]:
        """Replays tables.

        Raises:
            ConformanceError: the runner broke its contract.
        """
        command: list[str | Path] = [self._folder / "build" / "runner", "--server", server, *tables]
        done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
        try:
            lines = [json.loads(line) for line in done.stdout.splitlines()]
            outcomes = {(line["file"], line["scenario"]): Outcome(line["outcome"], line["why"]) for line in lines}
        except (ValueError, KeyError, TypeError):
            raise ConformanceError(f"the runner of {self.name} printed invalid lines: {done.stdout[-500:]!r}") from None
        if len(outcomes) < len(lines):
            raise ConformanceError(f"the runner of {self.name} printed a scenario twice")
        failed = any(outcome.how == "failed" for outcome in outcomes.values())
        if done.returncode != int(failed):
            raise ConformanceError(f"the runner of {self.name} exited with {done.returncode}: {done.stderr[-2000:]}")
        return outcomes

    def _provide(self) -> None:
        makefile = (self._folder / "Makefile").read_text()
        if "needed" not in makefile or not self._make("needed").returncode:
            return
        if "\nprovide:" in makefile:
            # If this fails, the build of the runner fails, too, and says what is missing.
            self._make("provide")
            return
        packages = self._make("--eval=debian-packages: ; @echo $(DEBIAN)", "debian-packages").stdout.split()
        if packages and os.geteuid() == 0 and shutil.which("apt-get"):
            _apt_get(packages)

    def _make(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = ["make", "--no-print-directory", "-C", str(self._folder), *arguments]
        # Without the variables of a make that runs this suite.
        environment = {k: v for k, v in os.environ.items() if k not in ("MAKEFLAGS", "MFLAGS", "MAKELEVEL")}
        return subprocess.run(command, capture_output=True, text=True, env=environment, check=False)


def clients() -> list[Client]:
    """All clients, by name."""
    return [Client(makefile.parent) for makefile in sorted((ROOT / "client").glob("*/Makefile"))]


def _apt_get(packages: list[str]) -> None:
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for command in (["update"], ["install", "--yes", "--no-install-recommends", *packages]):
        done = subprocess.run(["apt-get", "-q", *command], capture_output=True, text=True, env=environment, check=False)
        if done.returncode:
            raise ConformanceError(f"apt-get {command[0]} failed: {done.stderr[-2000:]}")
