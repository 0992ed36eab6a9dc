"""The spool: the folder with the journals of trials that the server may not know yet."""

from __future__ import annotations

import contextlib
import os
import string
import time
import zlib
from collections.abc import Iterator
from pathlib import Path

from wattwise.errors import log
from wattwise.training.journal import DRAFT_SUFFIX, SUFFIX, Journal, TrialRecord

MAX_TRIALS, MAX_BYTES = 1_000, 64 * 2**20
"""Of one job."""
MAX_TRIALS_IN_ALL, MAX_BYTES_IN_ALL = 10_000, 512 * 2**20

_DRAFT_SECONDS = 3600.0
_SAFE = frozenset(string.ascii_letters + string.digits + "-_+@=,")
_LONGEST_NAME = 100
_TAKE_OVER_SECONDS = 2.0


class Spool:
    """The journals of this machine's user: `<folder>/<server>/<job>/<request id>.wattwise-trial`.

    Args:
        folder: the folder, which need not exist; None keeps nothing.
    """

    _warned = False

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder

    @classmethod
    def from_env(cls) -> Spool:
        """The spool of `WATTWISE_SPOOL`, else the one in `XDG_STATE_HOME`."""
        chosen = os.environ.get("WATTWISE_SPOOL", "")
        if chosen.lower() == "off":
            return cls(None)
        state = os.environ.get("XDG_STATE_HOME", "")
        try:
            if chosen:
                return cls(Path(chosen).expanduser().absolute())
            # A relative path is invalid there.
            base = Path(state) if state.startswith("/") else Path("~/.local/state").expanduser()
        except (RuntimeError, OSError) as error:
            spool = cls(None)
            spool.warn(error)
            return spool
        return cls(base / "wattwise")

    def journal(self, record: TrialRecord) -> Journal:
        """The journal of a trial that starts, or that goes on; without a file if there cannot be one."""
        if self.folder is None:
            return Journal(record)
        path = self.folder_of(record.server, record.job.job_id) / f"{safe_name(record.request_id)}{SUFFIX}"
        try:
            self.folder.parent.mkdir(parents=True, exist_ok=True)
            for folder in (self.folder, path.parent.parent, path.parent):
                folder.mkdir(mode=0o700, exist_ok=True)
            if path.exists() and (found := _taken_over(path)) is not None:
                found.resume()
                return found
            self._make_room(path.parent)
            return Journal.create(record, path)
        except OSError as error:
            self.warn(error)
            return Journal(record)

    def folder_of(self, server: str, job_id: str) -> Path:
        """The folder of a job's journals.

        Raises:
            ValueError: if the spool keeps nothing.
        """
        if self.folder is None:
            raise ValueError("the spool is off")
        return self.folder / safe_name(server) / safe_name(job_id)

    def paths(self, server: str | None = None, job_id: str | None = None) -> list[Path]:
        """The journals, oldest first: all, those of a server, or those of one of its jobs."""
        if self.folder is None:
            return []
        if server is None:
            return [path for _, _, path in _journals(self.folder, depth=2)]
        if job_id is None:
            return [path for _, _, path in _journals(self.folder / safe_name(server), depth=1)]
        return [path for _, _, path in _journals(self.folder_of(server, job_id))]

    def path_of(self, server: str, job_id: str, request_id: str) -> Path | None:
        """The journal of a trial; None if there is none."""
        if self.folder is None:
            return None
        path = self.folder_of(server, job_id) / f"{safe_name(request_id)}{SUFFIX}"
        return path if path.exists() else None

    def warn(self, error: Exception) -> None:
        """Warns once in a process that nothing is kept."""
        if not Spool._warned:
            Spool._warned = True
            log.warning(
                "trials cannot be kept in a spool (%s): what the server has not received when this process ends is "
                "lost; set WATTWISE_SPOOL to a local folder that can be written, or to off",
                error,
            )

    def _make_room(self, folder: Path) -> None:
        """Drops the oldest journals beyond the limits; those of running trials stay."""
        if self.folder is None:
            return
        for scope, depth, max_trials, max_bytes in (
            (folder, 0, MAX_TRIALS, MAX_BYTES),
            (self.folder, 2, MAX_TRIALS_IN_ALL, MAX_BYTES_IN_ALL),
        ):
            found = _journals(scope, depth)
            trials, size = len(found) + 1, sum(each[1] for each in found)
            for _, bytes_of_file, path in found:
                if trials <= max_trials and size <= max_bytes:
                    break
                if drop(path):
                    log.warning(
                        "the spool is full, and the undelivered trial in %s is dropped: deliver the others with "
                        "`wattwise spool send`, or drop them with `wattwise spool drop`",
                        path,
                    )
                    trials, size = trials - 1, size - bytes_of_file


def drop(path: Path) -> bool:
    """Deletes a journal unless its trial is running; returns whether it did."""
    try:
        journal = Journal.open(path)
    except ValueError:
        path.unlink(missing_ok=True)
        return True
    except OSError:
        return False
    if journal is None:
        return False
    journal.delete()
    return True


def safe_name(text: str) -> str:
    """A text as the name of a file; a long or unusual one is cut and gets a checksum."""
    name = "".join(each if each in _SAFE or (each == "." and index) else "%" for index, each in enumerate(text))
    if name == text and 0 < len(name) <= _LONGEST_NAME:
        return name
    data = text.encode(errors="surrogatepass")
    return f"{name[:_LONGEST_NAME]}~{zlib.crc32(data):08x}{zlib.adler32(data):08x}"


def _taken_over(path: Path) -> Journal | None:
    """The journal of a trial that is resumed; None if it was delivered, or is unreadable."""
    deadline = time.monotonic() + _TAKE_OVER_SECONDS
    while True:
        try:
            journal = Journal.open(path)
        except ValueError:
            return None
        if journal is not None or not path.exists():
            return journal
        if time.monotonic() > deadline:
            raise OSError(f"{path} belongs to another process that trains this trial")
        # Another process is delivering it.
        time.sleep(0.02)


def _journals(folder: Path, depth: int = 0) -> list[tuple[float, int, Path]]:
    """Time of the last change, size and path of all journals in the folders below one, oldest first.

    Args:
        folder: the folder.
        depth: how many folders lie between it and the journals.
    """
    return sorted(_walk(folder, depth))


def _walk(folder: Path, depth: int) -> Iterator[tuple[float, int, Path]]:
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            path = Path(entry.path)
            if depth:
                if entry.is_dir(follow_symlinks=False):
                    yield from _walk(path, depth - 1)
            elif entry.is_file(follow_symlinks=False):
                stat = entry.stat(follow_symlinks=False)
                if path.suffix == SUFFIX:
                    yield stat.st_mtime, stat.st_size, path
                elif path.suffix == DRAFT_SUFFIX and time.time() - stat.st_mtime > _DRAFT_SECONDS:
                    # Of a process that was killed while it wrote it.
                    path.unlink(missing_ok=True)
