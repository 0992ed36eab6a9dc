"""Runs every command of the README, in order, as printed, and before them the targets that only its text names.

The server uses a free port and a temporary file. The commands need no network except the package index.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
TESTED_ELSEWHERE = {"make test": "its own stage of CI"}


def main() -> None:
    """Fail at the first command that fails."""
    text = (ROOT / "README.md").read_text()
    (trainer,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    if not (ROOT / "examples/smallest.py").read_text().endswith(f"\n\n{trainer}"):
        sys.exit("the trainer that the README shows is not examples/smallest.py")
    blocks = re.findall(r"```sh\n(.*?)```", text, re.DOTALL)
    commands = [line.split("  #")[0].strip() for block in blocks for line in block.splitlines() if line.strip()]
    named = [command for command in re.findall(r"`(make [^`]+)`", text) if command not in commands]
    with tempfile.TemporaryDirectory() as name:
        follow(list(dict.fromkeys(named)) + commands, Path(name))


def follow(commands: list[str], folder: Path) -> None:
    """Run the commands; `make serve` runs until the end."""
    # Not `.venv`, which keeps its editable installation.
    subprocess.run([sys.executable, "-m", "venv", str(folder / "own")], check=True)
    environment = {
        **os.environ,
        "PATH": f"{folder / 'own/bin'}:{os.environ['PATH']}",
        "WATTWISE_ADDRESS": "127.0.0.1:0",
        "WATTWISE_DATABASE": f"sqlite:///{folder}/ci.db",
        "WATTWISE_SPOOL": f"{folder}/spool",
    }
    serving: subprocess.Popen[str] | None = None
    try:
        for command in commands:
            say(f"$ {command}")
            if command in TESTED_ELSEWHERE:
                say(f"({TESTED_ELSEWHERE[command]})")
            elif command == "make serve":
                serving = serve(command, environment)
                environment["WATTWISE_SERVER"] = address_of(serving)
            else:
                subprocess.run(command, shell=True, check=True, cwd=ROOT, env=environment)  # noqa: S602 - as typed
    finally:
        if serving is not None:
            os.killpg(serving.pid, signal.SIGTERM)
            serving.communicate(timeout=30)


def serve(command: str, environment: dict[str, str]) -> subprocess.Popen[str]:
    """Start a server that keeps running."""
    return subprocess.Popen(
        command.split(), stdout=subprocess.PIPE, text=True, cwd=ROOT, env=environment, start_new_session=True
    )


def address_of(serving: subprocess.Popen[str]) -> str:
    """Read the address that the server prints."""
    assert serving.stdout is not None
    for line in serving.stdout:
        if found := re.fullmatch(r"wattwise listens on (\S+)\n", line):
            return found[1]
    raise RuntimeError("make serve ended without serving")


def say(text: str) -> None:
    """Print a line."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
