"""Runs the commands of `docs/operations.md` on TLS and tokens; only the port differs."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

GUIDE = Path(__file__).parents[3] / "docs/operations.md"
PORT = "50051"


def commands(heading: str) -> list[str]:
    """The commands in the shell blocks under a heading."""
    (section,) = re.findall(rf"^## {heading}\n(.*?)(?=^## |\Z)", GUIDE.read_text(), re.DOTALL | re.MULTILINE)
    blocks = re.findall(r"^```sh\n(.*?)^```", section, re.DOTALL | re.MULTILINE)
    return [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]


class Shell:
    """Types commands in one folder; a server that is started ends with the next one.

    Args:
        folder: Where they are typed.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        self._exports: list[str] = []
        self._port = PORT
        self._serving = ExitStack()

    def type(self, line: str) -> None:
        """Types one; it must succeed."""
        if line.startswith("export "):
            self._exports.append(line)
        elif line.startswith("wattwise serve "):
            self.stop()
            self._serve(line)
        else:
            self._run(line)

    def stop(self) -> None:
        """Ends the server."""
        self._serving.close()

    def _command(self, line: str) -> list[str]:
        return ["bash", "-ec", "\n".join([*self._exports, line]).replace(f":{PORT}", f":{self._port}")]

    def _run(self, line: str) -> None:
        variables = {**os.environ, "PATH": self._path, "WATTWISE_SERVER": f"localhost:{self._port}"}
        command = self._command(line)
        done = subprocess.run(
            command, cwd=self._folder, env=variables, capture_output=True, text=True, check=False, timeout=60
        )
        assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"

    def _serve(self, line: str) -> None:
        # Without what was exported, which is for clients.
        command = ["bash", "-ec", f"exec {line}".replace(f":{PORT}", ":0")]
        variables = {**os.environ, "PATH": self._path, "WATTWISE_ADDRESS": "127.0.0.1:0"}
        process = self._serving.enter_context(
            subprocess.Popen(command, cwd=self._folder, env=variables, stdout=subprocess.PIPE, text=True)
        )
        self._serving.callback(process.terminate)
        assert process.stdout is not None
        found = re.fullmatch(r"wattwise listens on \S+:(\d+)\n", process.stdout.readline())
        assert found, line
        self._port = found[1]


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    """A shell in an empty folder."""
    typed = Shell(tmp_path)
    try:
        yield typed
    finally:
        typed.stop()


@pytest.mark.thorough
@pytest.mark.skipif(shutil.which("openssl") is None, reason="the guide makes its certificates with OpenSSL")
def test_commands_on_tls_and_tokens(shell: Shell) -> None:
    """All commands succeed in order: tokens are created, used and replaced, then TLS and mutual TLS."""
    lines = [*commands("Tokens"), *commands("TLS")]
    assert lines
    for line in lines:
        shell.type(line)
