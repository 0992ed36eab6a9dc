"""Paths that a user names and that cannot be paths."""

from __future__ import annotations

from pathlib import Path

import pytest
from wattwise.commands.main import main


@pytest.mark.parametrize("name", ["loop", "x" * 252, "x" * 300])
@pytest.mark.parametrize(
    "words",
    [
        "migrate --database sqlite:///PATH",
        "backup --database sqlite:///PATH copy.db",
        "restore PATH --database sqlite:///wattwise.db",
        "token create --tokens PATH --role admin",
        "replay --traces PATH --all",
        "replay --synthetic 1 --json PATH/x",
    ],
)
def test_path_that_cannot_be_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: str, name: str
) -> None:
    """A loop of links and a name that is too long, also with a suffix, are errors that name the path."""
    monkeypatch.chdir(tmp_path)
    Path("loop").symlink_to("loop")
    try:
        status = main([word.replace("PATH", name) for word in words.split()])
    except SystemExit as left:
        status = 2 if isinstance(left.code, str) else int(left.code or 0)
    assert status != 0
    assert name in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["loop"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("restore /dev/tty --database sqlite:///wattwise.db", "/dev/tty is not a regular file"),
        ("copy sqlite:////dev/tty sqlite:///wattwise.db", "/dev/tty is not a regular file"),
        ("copy sqlite:////proc/version sqlite:///wattwise.db", "cannot create /proc/version.lock"),
    ],
)
def test_path_that_is_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: str, message: str
) -> None:
    """A device exists, but is no database; a folder in which no lock can be created has no other server."""
    monkeypatch.chdir(tmp_path)
    assert main(words.split()) == 1
    assert message in capsys.readouterr().err
