"""The reader of files that others may have written."""

from __future__ import annotations

import json
import math
import os
import socket
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from wattwise.files import (
    FileError,
    foreign,
    open_file,
    parse_json,
    read_bytes,
    read_end,
    read_json,
    read_text,
    replacing,
    resolved,
)


def _socket(path: Path) -> None:
    folder = os.open(path.parent, os.O_RDONLY)
    with socket.socket(socket.AF_UNIX) as made:
        # The path of a socket has a hundred characters at most.
        made.bind(f"/proc/self/fd/{folder}/{path.name}")
    os.close(folder)


def _sparse(path: Path) -> None:
    path.touch()
    os.truncate(path, 2**40)


SPECIAL: dict[str, Callable[[Path], object]] = {
    "folder": lambda path: path.mkdir(),
    "pipe": os.mkfifo,
    "socket": _socket,
    "link to a device": lambda path: path.symlink_to("/dev/zero"),
    "link to itself": lambda path: path.symlink_to(path),
    "a terabyte": _sparse,
}
"""What may have the name of a file."""


@pytest.mark.parametrize("kind", SPECIAL)
def test_only_regular_files_of_a_size_are_read(tmp_path: Path, kind: str) -> None:
    """What would block a reader, or never end, is refused with its path and a remedy."""
    path = tmp_path / "file"
    SPECIAL[kind](path)
    with pytest.raises(FileError) as refused:
        read_bytes(path)
    assert (refused.value.path, refused.value.line) == (path, None)
    assert str(path) in str(refused.value)
    assert refused.value.remedy in str(refused.value)


def test_missing_file(tmp_path: Path) -> None:
    """That a file is missing, or a link leads nowhere, is no fault of its content."""
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    for name in ("missing", "link"):
        with pytest.raises(FileNotFoundError):
            read_bytes(tmp_path / name)


def test_largest_size(tmp_path: Path) -> None:
    """A file may have the largest size, and no more."""
    path = tmp_path / "file"
    path.write_bytes(b"x" * 100)
    assert len(read_bytes(path, 100)) == 100
    with pytest.raises(FileError):
        read_bytes(path, 99)


def test_file_that_grows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that another program goes on writing is read up to the largest size."""
    path, read = tmp_path / "file", os.pread

    def grows(descriptor: int, size: int, offset: int) -> bytes:
        with path.open("ab") as file:
            file.write(b"x" * 100)
        return read(descriptor, size, offset)

    path.write_bytes(b"x")
    monkeypatch.setattr(os, "pread", grows)
    with pytest.raises(FileError):
        read_bytes(path, 1000)
    assert path.stat().st_size < 2000


def test_links_are_confined_to_their_folder(tmp_path: Path) -> None:
    """A link within the folder is followed; one that leads out of it is refused, even if it replaces the folder."""
    folder, outside = tmp_path / "folder", tmp_path / "outside"
    for each in (folder, outside):
        each.mkdir()
        (each / "file").write_text("text")
    (folder / "inside").symlink_to("file")
    (folder / "out").symlink_to(outside / "file")
    (folder / "sub").symlink_to(outside)
    (tmp_path / "replaced").symlink_to(outside)
    assert read_text(folder / "inside", within=folder) == "text"
    assert read_text(folder / "out") == "text"
    for path in (folder / "out", folder / "sub" / "file", folder / ".." / "outside" / "file"):
        with pytest.raises(FileError):
            read_text(path, within=folder)
    with pytest.raises(FileError):
        read_text(tmp_path / "replaced" / "file", within=tmp_path / "replaced")
    # Links above the folder are the user's own.
    (tmp_path / "above").symlink_to(tmp_path)
    assert read_text(tmp_path / "above" / "folder" / "file", within=tmp_path / "above" / "folder") == "text"


def test_text_is_utf_8(tmp_path: Path) -> None:
    """A byte order mark is left out; the first line that is not UTF-8 is named."""
    path = tmp_path / "file"
    path.write_bytes("é".encode("utf-8-sig"))
    assert read_text(path) == "é"
    path.write_bytes(b"one\ntwo \xe9\n")
    with pytest.raises(FileError) as refused:
        read_text(path)
    assert refused.value.line == 2
    path.write_text("text", encoding="utf-16")
    with pytest.raises(FileError, match="UTF-8"):
        read_text(path)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("", 1),
        ('{\n"a": }', 2),
        ('{"a": "\0"}', 1),
        ("[" * 200_000, None),
        ('{"a":' * 100_000, None),
        ('{"a": 1, "a": 2}', None),
        ('["\\ud800"]', None),
        ('{"\\uDFFF": 1}', None),
    ],
)
def test_json_that_nobody_can_use(tmp_path: Path, text: str, line: int | None) -> None:
    """Malformed and too deeply nested JSON, a name that occurs twice, and half of a character are faults."""
    path = tmp_path / "file"
    path.write_text(text)
    with pytest.raises(FileError) as refused:
        read_json(path)
    assert refused.value.line == line


@pytest.mark.parametrize("digits", [400, 5000])
def test_integers_of_any_length(digits: int) -> None:
    """An integer that no program means is a float, so that it can be compared and shown."""
    (number,) = parse_json(f"[1{'0' * digits}]")
    assert number == math.inf
    assert parse_json("[9007199254740993]") == [2**53 + 1]


def test_json_of_python() -> None:
    """What `json.dumps` writes is read, NaN and pairs of surrogates too."""
    document: Any = {"metric": [1.5, math.inf, None, True], "text": "\U0001f600 \\u"}
    assert parse_json(json.dumps(document)) == document
    assert math.isnan(parse_json(json.dumps(math.nan)))


def test_end_of_a_file(tmp_path: Path) -> None:
    """No more than the end is read, and nothing before an offset."""
    path = tmp_path / "file"
    path.write_bytes(b"0123456789")
    assert read_end(path, 4) == b"6789"
    assert read_end(path, 4, 8) == b"89"
    assert read_end(path, 40) == b"0123456789"


@pytest.mark.parametrize("kind", SPECIAL)
def test_replaced_file(tmp_path: Path, kind: str) -> None:
    """Whatever has the name of the new file is not written through; only a folder cannot be removed."""
    path, fresh = tmp_path / "file", tmp_path / "file.new"
    path.write_text("old")
    SPECIAL[kind](fresh)
    try:
        with replacing(path) as file:
            file.write(b"new")
    except OSError:
        assert (kind, path.read_text()) == ("folder", "old")
    else:
        assert path.read_text() == "new"
        assert not fresh.exists()


def test_failure_keeps_the_file(tmp_path: Path) -> None:
    """An exception within the block leaves the old file, and no new one."""
    path = tmp_path / "file"
    path.write_text("old")
    with pytest.raises(TypeError), replacing(path) as file:
        file.write("no bytes")  # type: ignore[call-overload]  # such as a bug
    assert [each.name for each in tmp_path.iterdir()] == ["file"]
    assert path.read_text() == "old"


@pytest.mark.parametrize("mode", ["rb", "ab", "a+b"])
def test_pipe_is_not_opened_for_writing_either(tmp_path: Path, mode: str) -> None:
    """A pipe without a reader would block a log."""
    os.mkfifo(tmp_path / "log")
    with pytest.raises(FileError):
        open_file(tmp_path / "log", mode)


def test_who_may_have_written_a_file(tmp_path: Path) -> None:
    """A file is the user's own if nobody else owns it or may write it."""
    path = tmp_path / "file"
    path.touch(0o644)
    assert foreign(path.stat()) == ""
    for mode in (0o664, 0o646):
        path.chmod(mode)
        assert foreign(path.stat())
    found = list(path.stat())
    found[stat.ST_UID] = os.geteuid() + 1
    assert str(os.geteuid() + 1) in foreign(os.stat_result(found))


@pytest.mark.parametrize("name", ["x" * 300, "a\0b", "loop", "loop/file"])
def test_path_that_cannot_be_one(tmp_path: Path, name: str) -> None:
    """A loop of links, a NUL and a name that is too long are errors that name the path."""
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(FileError) as caught:
        resolved(tmp_path / name)
    assert caught.value.path == tmp_path / name


def test_path_that_does_not_exist(tmp_path: Path) -> None:
    """Links to what does not exist yet are resolved, too."""
    (tmp_path / "link").symlink_to("missing")
    assert resolved(tmp_path / "link" / "file") == tmp_path / "missing" / "file"
