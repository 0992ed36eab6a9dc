"""What every command does with its arguments, its variables and its output."""

from __future__ import annotations

import argparse
import errno
import itertools
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from wattwise import v1
from wattwise.commands.main import ENTRIES, main
from wattwise.commands.parsing import Parser

from tests.jobs import Trainer

NAME = "m-é名\U0001f600"
COMMANDS = (
    ("jobs", "list"),
    ("jobs", "show", NAME),
    ("jobs", "trials", NAME),
    ("jobs", "events", NAME),
    ("jobs", "savings"),
    ("jobs", "export"),
    ("spool", "list"),
    ("health",),
    ("replay", "--synthetic", "1", "--recurrences", "2", "--seeds", "1"),
    ("token", "list", "--tokens", "{folder}/tokens"),
    ("migrate", "--database", "sqlite:///{folder}/é.db"),
    ("serve", "--address", "127.0.0.1:0", "--database", "sqlite:///{folder}/é.db"),
    ("web", "--address", "127.0.0.1:0"),
    ("run", "{folder}/é.toml", "--dry-run"),
    ("--version",),
    ("jobs", "--help"),
)
"""Commands that print something, of every package."""
SHORT = tuple(each for each in COMMANDS if each[0] not in ("serve", "web"))

JOB = """
[job]
job_id_prefix = "é"
job_id = "é"
batch_sizes = [8]
default_batch_size = 8
target_metric = 0.9
[job.gpu]
count = 1
max_power_watts_per_gpu = 100
gpu_model = "é"
[train]
command = ["true", "é"]
[run]
monitor = "estimate:100"
"""


@pytest.fixture
def folder(tmp_path: Path, stub: v1.BatchSizeOptimizerStub) -> Path:
    """A folder with files that the commands read; the server has a job whose name no ASCII terminal can show."""
    Trainer(stub, job_id=NAME, job_id_prefix="m").run(10.0)
    (tmp_path / "é.toml").write_text(JOB)
    assert main(["token", "create", "--role", "trainer", "--prefix", "é-", "--tokens", str(tmp_path / "tokens")]) == 0
    return tmp_path


def _command(words: tuple[str, ...], folder: Path) -> list[str]:
    line = "import sys; from wattwise.commands.main import main; sys.exit(main())"
    return [sys.executable, "-c", line, *(word.format(folder=folder) for word in words)]


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("words", "encoding"),
    [*((words, "ascii") for words in SHORT), (SHORT[0], "latin-1"), (SHORT[0], "utf-8:strict")],
    ids=lambda value: value if isinstance(value, str) else " ".join(value),
)
def test_text_that_a_terminal_cannot_encode(folder: Path, words: tuple[str, ...], encoding: str) -> None:
    """A character that is not in the encoding is escaped; no command fails for it."""
    environment = {**os.environ, "PYTHONIOENCODING": encoding}
    done = subprocess.run(_command(words, folder), capture_output=True, env=environment, check=False, timeout=60)
    assert (done.returncode, done.stderr.count(b"Traceback")) == (0, 0)
    if words[:2] != ("jobs", "export"):
        done.stdout.decode(encoding.partition(":")[0])


def test_export_is_utf_8_whatever_the_terminal(folder: Path) -> None:
    """A file or a pipe gets an export as it is, since no program could undo the escapes."""
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    command = _command(("jobs", "export", NAME), folder)
    done = subprocess.run(command, capture_output=True, env=environment, check=True, timeout=60)
    assert NAME in done.stdout.decode()


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("words", "unbuffered"),
    [*((words, "") for words in COMMANDS), (COMMANDS[0], "1"), (COMMANDS[-1], "1")],
    ids=lambda value: value if isinstance(value, str) else " ".join(value),
)
def test_output_that_cannot_be_written(folder: Path, words: tuple[str, ...], unbuffered: str) -> None:
    """A full disk ends a command with one line on stderr and status 1."""
    environment = {**os.environ, "PYTHONUNBUFFERED": unbuffered, "WATTWISE_LOG_LEVEL": "error"}
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            _command(words, folder), stdout=full, stderr=subprocess.PIPE, env=environment, check=False, timeout=60
        )
    # A dry run says on stderr where its commands would run.
    *others, last = done.stderr.decode().splitlines()
    assert (done.returncode, [line for line in others if not line.startswith("# in ")]) == (1, [])
    assert os.strerror(errno.ENOSPC) in last


@pytest.mark.parametrize("words", [SHORT[0], SHORT[5], SHORT[-1]], ids=" ".join)
def test_closed_streams(folder: Path, words: tuple[str, ...]) -> None:
    """Streams that the caller has closed are like /dev/null, and no file of the command takes their place."""
    command = ["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", *_command(words, folder)]
    assert subprocess.run(command, check=False, timeout=60).returncode == 0


def test_reader_of_help_gone(folder: Path) -> None:
    """What argparse prints ends like any other output if the reader of the pipe is gone."""
    reader, writer = os.pipe()
    os.close(reader)
    command = _command(("jobs", "--help"), folder)
    with subprocess.Popen(command, stdout=writer, stderr=subprocess.PIPE) as process:
        os.close(writer)
        _, error = process.communicate(timeout=60)
    assert (process.returncode, error) == (141, b"")


def test_token_that_nobody_has_seen(tmp_path: Path) -> None:
    """A token that could not be printed is not in the file."""
    file = tmp_path / "tokens"
    command = _command(("token", "create", "--role", "admin", "--tokens", str(file)), tmp_path)
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, check=False, timeout=60)
    assert (done.returncode, file.read_text()) == (1, "")


def _parsers(parser: argparse.ArgumentParser) -> list[argparse.ArgumentParser]:
    if isinstance(parser, Parser) and parser.declare is not None:
        declare, parser.declare = parser.declare, None
        declare(parser)
    # argparse has no public way to a parser's commands.
    nested = [each for each in parser._actions if isinstance(each, argparse._SubParsersAction)]  # noqa: SLF001
    below = itertools.chain.from_iterable(action.choices.values() for action in nested)
    return [parser, *itertools.chain.from_iterable(map(_parsers, below))]


def _variables() -> list[tuple[str, str]]:
    """Each command with each of the variables in its help."""
    found = set()
    for name, entry in ENTRIES.items():
        parser = Parser()
        entry.load().add_arguments(parser)
        for each in _parsers(parser):
            found |= {(name, variable) for variable in re.findall(r"\$(WATTWISE_\w+)", each.format_help())}
    return sorted(found)


ARGUMENTS = {
    "backup": ["x.db"],
    "jobs": ["list"],
    "replay": ["--job", "x", "--server", "127.0.0.1:1"],
    "restore": ["x.db"],
    "run": ["{folder}/é.toml", "--server", "127.0.0.1:1"],
    "spool": ["send"],
    "token": ["list"],
}
WEB_URL = ("jobs", "WATTWISE_WEB_URL")
"""What the commands need to use their variables."""


@pytest.mark.parametrize(("command", "variable"), _variables())
def test_control_character_in_a_variable(
    folder: Path, command: str, variable: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A carriage return, as files that were edited on Windows have it, is refused by the name of its variable."""
    monkeypatch.chdir(folder)
    words = ["show", NAME, "--web"] if (command, variable) == WEB_URL else ARGUMENTS.get(command, [])
    arguments = [word.format(folder=folder) for word in words]
    if variable == "WATTWISE_SERVER" and "--server" in arguments:
        arguments = arguments[: arguments.index("--server")]
    monkeypatch.setenv(variable, "1\r")
    with pytest.raises(SystemExit) as ended:
        sys.exit(main([command, *arguments]))
    assert ended.value.code in (1, 2)
    error = capsys.readouterr().err
    assert variable in error
    assert "'\\r'" in error
    assert sorted(path.name for path in folder.iterdir()) == ["tokens", "tokens.lock", "é.toml"]


@pytest.mark.parametrize(
    "words",
    [
        ("serve", "--database", "sqlite:///w.db\r"),
        ("serve", "--tokens=x\r"),
        ("jobs", "import", "id", "x.csv\n"),
        ("run", "job.toml\x1b"),
        ("backup", "x\x00.db"),
        ("web", "export", "--job", "x", "page\x85.html"),
    ],
)
def test_control_character_in_an_argument(
    tmp_path: Path, words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An option or a path with a control character is refused before anything is opened."""
    monkeypatch.chdir(tmp_path)
    assert main(words) == 2
    error = capsys.readouterr().err.rstrip("\n")
    assert error.isprintable()
    option = words[1].partition("=")[0] if words[1].startswith("--") else repr(words[-1])
    assert option in error
    assert list(tmp_path.iterdir()) == []


def test_url_in_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The URL that a file holds may end its line as on Windows, and has no control character within."""
    (tmp_path / "url").write_bytes(f"sqlite:///{tmp_path}/w.db\r\n".encode())
    assert main(["migrate", "--database", f"@{tmp_path}/url"]) == 0
    assert (tmp_path / "w.db").exists()
    (tmp_path / "url").write_bytes(f"sqlite:///{tmp_path}/x\r.db\n".encode())
    with pytest.raises(SystemExit):
        main(["migrate", "--database", f"@{tmp_path}/url"])
    assert "'\\r'" in capsys.readouterr().err


def test_argument_that_is_not_utf_8(capsys: pytest.CaptureFixture[str]) -> None:
    """A job id in bytes of another encoding is refused."""
    assert main(["jobs", "show", os.fsdecode(b"caf\xe9")]) == 2
    assert "UTF-8" in capsys.readouterr().err
