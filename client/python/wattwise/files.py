"""Reading and replacing files that another user or program may have written.

Only regular files are opened: a named pipe or a device would block the reader, or never end. What is read has a largest
size, is UTF-8, and, as JSON, has no numbers or nesting that Python cannot handle. A link may be confined to the folder
that it is in. Every fault is a `FileError` with the file, the line if it is known, and what to do.

On the standard library alone: the server uses this module too.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import stat
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing import TypeGuard

SMALL, USUAL, LARGE = 2**16, 2**24, 2**28
"""Largest sizes in bytes: of a file with a few values, of one that a program has written, of a table."""
_LONGEST_NUMBER = 40
"""Digits of an integer in JSON; a longer one is a float, since Python neither reads nor shows thousands of digits."""
_LONGEST_COMMAND = 100
_CHUNK = 2**20
_APPENDING = os.O_CREAT | os.O_APPEND
_FLAGS = {"rb": os.O_RDONLY, "ab": os.O_WRONLY | _APPENDING, "a+b": os.O_RDWR | _APPENDING}
_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFLNK: "a link",
}


class FileError(ValueError):
    """A file cannot be used.

    Args:
        path: the file.
        fault: what is wrong with it, such as "is a folder".
        remedy: what to do.
        line: the number of the faulty line; None if it is unknown.

    Attributes:
        path: as given, like the others.
    """

    def __init__(self, path: Path, fault: str, remedy: str, line: int | None = None) -> None:
        where = "" if line is None else f", line {line},"
        super().__init__(f"{shown(path)}{where} {fault}; {remedy}")
        self.path = path
        self.fault = fault
        self.remedy = remedy
        self.line = line


def shown(path: Path) -> str:
    """Formats a path for a message; one with characters that a terminal does not show is quoted."""
    text = str(path)
    return text if text.isprintable() else repr(text)


def resolved(path: Path) -> Path:
    """Resolves the links of a path that a user has named; the file need not exist.

    Raises:
        FileError: if links lead in a circle, or the path cannot be one, such as a name that is too long.
    """
    try:
        found = path.resolve()
        with contextlib.suppress(FileNotFoundError, NotADirectoryError, PermissionError):
            found.stat()
    except (RuntimeError, OSError, ValueError) as error:
        # Up to Python 3.12 a loop of links is a RuntimeError, later it is found by stat().
        fault = getattr(error, "strerror", None) or str(error)
        raise FileError(path, f"cannot be used: {fault}", "name another one") from None
    return found


def open_regular(path: Path, flags: int = os.O_RDONLY, *, within: Path | None = None, mode: int = 0o666) -> int:
    """Opens a regular file without blocking; returns its descriptor.

    Args:
        path: the file.
        flags: of `os.open`.
        within: the folder that links must not lead out of; None follows every link.
        mode: the permissions of a file that is created.

    Raises:
        FileError: if it is no regular file, or leads out of the folder.
        OSError: if it cannot be opened.
    """
    target = path if within is None else _confined(path, within)
    flags |= 0 if within is None else os.O_NOFOLLOW
    # Opening a device may have effects, such as rewinding a tape.
    with contextlib.suppress(FileNotFoundError):
        _check_regular(path, target.stat(follow_symlinks=not flags & os.O_NOFOLLOW))
    descriptor = os.open(target, flags | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC, mode)
    try:
        _check_regular(path, os.fstat(descriptor))
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def open_file(path: Path, mode: str, *, within: Path | None = None) -> IO[bytes]:
    """Opens a regular file: `mode` is "rb", or "ab" or "a+b" to append to one that is created if it is missing.

    The other arguments and the errors are those of `open_regular`.
    """
    return os.fdopen(open_regular(path, _FLAGS[mode], within=within), mode)


def read_bytes(path: Path, most: int = USUAL, *, within: Path | None = None) -> bytes:
    """Reads a regular file.

    Args:
        path: the file.
        most: its largest size in bytes.
        within: as of `open_regular`.

    Raises:
        FileNotFoundError: if there is no such file.
        FileError: if it cannot be read, or is larger.
    """
    try:
        descriptor = open_regular(path, within=within)
        try:
            return read_descriptor(descriptor, path, most)
        finally:
            os.close(descriptor)
    except FileNotFoundError:
        raise
    except OSError as error:
        denied = error.errno in (errno.EACCES, errno.EPERM)
        remedy = "correct its permissions and those of its folder" if denied else "name another file, or move it away"
        raise FileError(path, f"cannot be read: {error.strerror}", remedy) from error


def read_descriptor(descriptor: int, path: Path, most: int) -> bytes:
    """Reads an open regular file from its beginning.

    Raises:
        FileError: if it is larger than `most` bytes.
        OSError: if it cannot be read.
    """
    content = bytearray()
    # The size is checked first, so that nothing is read of a file that is too large; it may also grow meanwhile.
    size = os.fstat(descriptor).st_size
    while size <= most and (chunk := os.pread(descriptor, min(_CHUNK, most + 1 - len(content)), len(content))):
        content += chunk
        size = len(content)
    if size > most:
        raise FileError(path, f"is larger than {most:,} bytes", "it is not the file that is expected: move it away")
    return bytes(content)


def read_end(path: Path, most: int, after: int = 0, *, within: Path | None = None) -> bytes:
    """Reads the end of a file that has grown.

    Args:
        path: the file.
        most: how many bytes are read.
        after: the offset before which nothing is read.
        within: as of `open_regular`, like the errors.
    """
    descriptor = open_regular(path, within=within)
    try:
        return os.pread(descriptor, most, max(after, os.fstat(descriptor).st_size - most))
    finally:
        os.close(descriptor)


def read_text(path: Path, most: int = USUAL, *, within: Path | None = None) -> str:
    """Reads a regular file in UTF-8, with or without a byte order mark; see `read_bytes`."""
    return decoded(read_bytes(path, most, within=within), path)


def decoded(content: bytes, path: Path) -> str:
    """Decodes the content of a file.

    Raises:
        FileError: if it is not UTF-8.
    """
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise FileError(path, "is not UTF-8 text", "save it as UTF-8", line) from None


def read_json(path: Path, most: int = USUAL, *, within: Path | None = None) -> Any:
    """Reads the JSON document in a regular file; see `read_bytes` and `parse_json`."""
    text = read_text(path, most, within=within)
    try:
        return parse_json(text)
    except json.JSONDecodeError as error:
        raise FileError(path, f"is not JSON: {error.msg}", "correct it", error.lineno) from None
    except ValueError as error:
        raise FileError(path, f"has JSON that cannot be used: {error}", "correct it") from None


def parse_json(text: str) -> Any:
    """Parses a JSON document; NaN and Infinity are numbers, as for Python.

    Raises:
        ValueError: if it is not JSON, or nobody can use it.
    """
    try:
        document = json.loads(text, parse_int=_integer, object_pairs_hook=_object)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if "\\u" in text:
        try:
            json.dumps(document, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            raise ValueError("a text in it has half of a surrogate pair") from None
    return document


def is_number(value: object) -> TypeGuard[int | float]:
    """Tells whether a value of a JSON document is a number; to Python, true is one."""
    return isinstance(value, float) or (isinstance(value, int) and not isinstance(value, bool))


def integer_of(value: object) -> int | None:
    """Returns the integer that a number of a JSON document is, in which 7.0 is 7; None if it is none."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def foreign(found: os.stat_result) -> str:
    """Explains why another user may have written a file or folder, such as "belongs to user 7"; empty if none may."""
    if found.st_uid != os.geteuid():
        return f"belongs to user {found.st_uid}"
    return "can be written by other users" if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH) else ""


@contextlib.contextmanager
def replacing(path: Path, name: str = "{}.new", mode: int = 0o666) -> Iterator[IO[bytes]]:
    """Writes a new file that takes the place of `path`, durably, unless the block raises.

    Readers see the old file or the new one, never a part of it.

    Args:
        path: the file.
        name: the name of the new file, with `{}` for that of the old one; a file or a link of that name is removed.
        mode: the permissions of the new file. Its path is the `name` of what is yielded.

    Raises:
        OSError: if the file cannot be written; `path` is unchanged.
    """
    fresh = path.with_name(name.replace("{}", path.name))
    with contextlib.suppress(FileNotFoundError):
        fresh.unlink()
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
    try:
        with open(fresh, "wb", opener=lambda _name, _flags: descriptor) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            fresh.unlink()
        raise
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Makes the names in a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def holder_of(path: Path) -> str:
    """Returns the process that has locked a file, such as "process 4711 (python train.py)"."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        inode = str(path.stat().st_ino)
        for line in Path("/proc/locks").read_text(encoding="ascii").splitlines():
            # 1: FLOCK ADVISORY WRITE 4711 fe:01:1835013 0 EOF
            words = line.split()
            if words[1] == "FLOCK" and words[5].rpartition(":")[2] == inode and words[4].isdecimal():
                command = Path(f"/proc/{words[4]}/cmdline").read_text(encoding="utf-8", errors="replace")
                return f"process {words[4]} ({command.replace(chr(0), ' ').strip()[:_LONGEST_COMMAND]})"
    return "another process"


def _check_regular(path: Path, found: os.stat_result) -> None:
    if not stat.S_ISREG(found.st_mode):
        kind = _KINDS.get(stat.S_IFMT(found.st_mode), "of an unknown kind")
        raise FileError(path, f"is {kind}", "a regular file is needed: move this one away, or name another file")


def _confined(path: Path, within: Path) -> Path:
    """Returns the file that a path leads to.

    Raises:
        FileError: if it is outside of the folder, which may itself have been replaced by a link.
    """
    target = Path(os.path.realpath(path))
    if not target.is_relative_to(Path(os.path.realpath(within.parent), within.name)):
        raise FileError(path, f"leads out of {shown(within)} by a link", "replace the link by the file")
    return target


def _integer(text: str) -> int | float:
    return int(text) if len(text) <= _LONGEST_NUMBER else float(text)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        ((twice, _),) = Counter(name for name, _ in pairs).most_common(1)
        raise ValueError(f"it has {twice!r:.80} twice")
    return found
