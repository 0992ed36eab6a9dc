"""The clients of all languages: builds their runners, and installs what they need."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]


class ConformanceError(Exception):
    """The suite cannot continue; the message says why."""


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

    @property
    def runner(self) -> Path:
        """The program of the runner."""
        return self._folder / "build" / "runner"

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
    """Returns all clients, by name."""
    return [Client(makefile.parent) for makefile in sorted((ROOT / "client").glob("*/Makefile"))]


def _apt_get(packages: list[str]) -> None:
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for command in (["update"], ["install", "--yes", "--no-install-recommends", *packages]):
        done = subprocess.run(["apt-get", "-q", *command], capture_output=True, text=True, env=environment, check=False)
        if done.returncode:
            raise ConformanceError(f"apt-get {command[0]} failed: {done.stderr[-2000:]}")
