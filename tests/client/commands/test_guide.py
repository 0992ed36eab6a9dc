"""The outputs in docs/control.md are what its commands print."""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import pytest

from tests.client.commands.conftest import Ask
from tests.live_server import LiveServer
from tests.terminal import on_terminal, wattwise

GUIDE = Path(__file__).parents[3] / "docs/control.md"
COLUMNS = 100


def blocks(language: str) -> list[str]:
    """The guide's blocks of a language, in order."""
    return re.findall(rf"^```{language}\n(.*?)^```$", GUIDE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)


def outputs() -> Iterator[tuple[str, str]]:
    """The commands of the guide whose output it shows, in order."""
    for block in blocks("console"):
        for part in block.split("$ ")[1:]:
            command, _, output = part.partition("\n")
            yield command, output


def matches(shown: str, printed: str) -> bool:
    """Whether the output is the one shown, in which three dots stand for a time."""
    pattern = r"[^\n]+".join(map(re.escape, shown.rstrip().split("…")))
    return re.fullmatch(pattern, "\n".join(line.rstrip() for line in printed.rstrip().split("\n"))) is not None


@pytest.fixture
def example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ask: Ask) -> Iterator[None]:
    """The server and the job of the guide's example, which commands find in their environment."""
    serve, trials, *_ = blocks("sh")
    *table, load = trials.splitlines()
    (register,) = (block for block in blocks("python") if 'job_id="example"' in block)
    words = shlex.split(serve)
    assert words[:4] == ["wattwise", "serve", "--database", "sqlite:///example.db"]
    with LiveServer(tmp_path) as server:
        server.start(*words[4:])
        exec(register.replace("localhost:50051", server.address), {})  # noqa: S102 - as a reader would run it
        subprocess.run(["bash", "-c", "\n".join(table)], check=True, cwd=tmp_path)
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("WATTWISE_SERVER", server.address)
        ask(*shlex.split(load)[1:])
        yield


@pytest.mark.thorough
@pytest.mark.usefixtures("example")
def test_outputs_are_those_of_the_commands(ask: Ask) -> None:
    """Each command prints what the guide shows below it, times aside."""
    actions = [command.split()[2] for command, _ in outputs()]
    assert actions == ["show", "list", "trials", "trial", "savings", "watch", "events"]
    for command, shown in outputs():
        if command == "wattwise jobs watch example | cat":
            printed = watched(ask)
        else:
            status, printed = on_terminal(shlex.split(command)[1:], COLUMNS)
            assert status == 0
        assert matches(shown, printed), f"$ {command}\n{printed}"


def watched(ask: Ask) -> str:
    """What a watch prints in a pipe while the guide's changes are made, each once the line before was read."""
    (changes,) = (block for block in blocks("sh") if block.startswith("wattwise jobs pause"))
    with subprocess.Popen(wattwise("jobs", "watch", "example"), stdout=subprocess.PIPE, text=True) as watch:
        assert watch.stdout is not None
        lines: list[str] = [line_of(watch.stdout)]
        for change in changes.splitlines():
            ask(*shlex.split(change)[1:])
            lines.append(line_of(watch.stdout))
        watch.terminate()
    return "".join(lines)


def line_of(stream: IO[str]) -> str:
    """The next line, which there is."""
    line = stream.readline()
    assert line
    return line
