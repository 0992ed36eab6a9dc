"""The spool: the folder with the journals of trials that the server may not know yet."""

from __future__ import annotations

import contextlib
import os
import stat
import string
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from weakref import WeakValueDictionary

from wattwise.errors import WattwiseError, log, warn_once
from wattwise.files import FileError, foreign, holder_of, shown, sync_folder
from wattwise.rpc.address import server_of
from wattwise.training.journal import (
    DRAFT_SUFFIX,
    MOST_BYTES,
    SUFFIX,
    Journal,
    JournalInUseError,
    TrialRecord,
    delete_draft,
    read_record,
)
from wattwise.variables import read_variable

MAX_TRIALS, MAX_BYTES = 1_000, 64 * 2**20
"""The limits of one job's spool."""
MAX_TRIALS_IN_ALL, MAX_BYTES_IN_ALL = 10_000, 512 * 2**20

_REMEDY = "set WATTWISE_SPOOL to a local folder that you alone can write (`chmod go-w`), or to off"
_DRAFT_SECONDS = 3600.0
_SAFE = frozenset(string.ascii_letters + string.digits + "-_+@=,")
_LONGEST_NAME = 100
_TAKE_OVER_SECONDS = 0.25
"""A launch that resumes a trial may wait twice."""

_shared: WeakValueDictionary[Path, Journal] = WeakValueDictionary()
"""The journals of the trials of this process: a second optimizer of a launch shares that of the first."""
os.register_at_fork(after_in_child=_shared.clear)


class SpoolError(WattwiseError):
    """The spool cannot be used; the message says why, and what to do.

    Attributes:
        fault: why.
    """

    def __init__(self, fault: str) -> None:
        super().__init__(f"the spool cannot be used: {fault}; {_REMEDY}")
        self.fault = fault


class Spool:
    """The journals of this machine's user: `<folder>/<server>/<job>/<launch id>.wattwise-trial`.

    Args:
        folder: the folder, which need not exist; None keeps nothing.
    """

    _warned = False

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder

    @classmethod
    def from_env(cls) -> Spool:
        """Returns the spool of `WATTWISE_SPOOL`, else of `XDG_STATE_HOME`; it keeps nothing if none can be used."""
        try:
            return cls.named()
        except SpoolError as error:
            spool = cls(None)
            spool.warn(error.fault)
            return spool

    @classmethod
    def named(cls) -> Spool:
        """Returns the spool of the environment.

        Raises:
            SpoolError: if a variable names no folder, or others may have written there.
        """
        chosen = read_variable("WATTWISE_SPOOL", SpoolError)
        if chosen.lower() == "off":
            return cls(None)
        try:
            if chosen:
                folder = Path(chosen).expanduser().absolute()
            else:
                state = read_variable("XDG_STATE_HOME", SpoolError)
                # A relative path is invalid there.
                folder = (Path(state) if state.startswith("/") else Path("~/.local/state").expanduser()) / "wattwise"
        except (RuntimeError, OSError) as error:
            raise SpoolError(str(error)) from error
        if fault := _fault_of(folder, of_user=True):
            raise SpoolError(fault)
        return cls(folder)

    def journal(self, record: TrialRecord) -> Journal:
        """Returns the journal of a trial that starts, or that goes on; without a file if there cannot be one."""
        if self.folder is None:
            return Journal(record)
        path = self.folder_of(record.server, record.job.job_id) / f"{safe_name(record.launch_id)}{SUFFIX}"
        shared = _shared.get(path)
        if shared is not None and shared.share():
            shared.resume()
            return shared
        try:
            for folder in reversed(self.folder.parents):
                _make(folder)
            for folder in (self.folder, path.parent.parent, path.parent):
                _make(folder, 0o700)
                # Before anything is made in it.
                if fault := _fault_of(folder, of_user=folder == self.folder):
                    raise PermissionError(fault)
            journal = self._opened_or_created(record, path)
        except JournalInUseError:
            log.warning(
                "%s is in use by %s, which trains this trial or delivers it: this process keeps no journal of the "
                "trial, so that what the server has not received when it is killed is lost",
                *(path, holder_of(path)),
            )
            return Journal(record)
        except FileError as error:
            log.warning(
                "%s cannot be read (%s) and stays as it is: this process keeps no journal of the trial, so that what "
                "the server has not received when it is killed is lost; move the file away, or drop it with "
                "`wattwise spool drop`",
                *(shown(path), error.fault),
            )
            return Journal(record)
        except OSError as error:
            self.warn(error)
            return Journal(record)
        _shared[path] = journal
        return journal

    def _opened_or_created(self, record: TrialRecord, path: Path) -> Journal:
        """Returns the journal of a trial that starts or goes on.

        Raises:
            JournalInUseError: if it belongs to another process.
            OSError: if it cannot be read or created.
            ValueError: if the file is not a journal.
        """
        for _ in range(2):
            if (journal := _taken_over(path)) is not None:
                journal.resume()
                return journal
            self._make_room(path.parent)
            # Another process may have created it in between, and even ended.
            with contextlib.suppress(JournalInUseError):
                return Journal.create(record, path)
        raise JournalInUseError(path)

    def hold(self, server: str, job_id: str, launch_id: str) -> Journal | None:
        """Opens the journal of a trial that is about to be resumed: nobody delivers it then. None if there is none.

        `journal` then shares it; the caller leaves it afterwards.
        """
        path = self.path_of(server, job_id, launch_id)
        shared = path and _shared.get(path)
        if shared and shared.share():
            return shared
        with contextlib.suppress(OSError, ValueError):
            if path is not None and (journal := _taken_over(path)) is not None:
                _shared[path] = journal
                return journal
        return None

    def folder_of(self, server: str, job_id: str) -> Path:
        """Returns the folder of a job's journals; all spellings of a server's address have the same.

        Raises:
            ValueError: if the spool keeps nothing.
        """
        return self._folder_of(server) / safe_name(job_id)

    def paths(self, server: str | None = None, job_id: str | None = None) -> list[Path]:
        """Returns the journals, oldest first: all, those of a server, or those of one of its jobs."""
        if self.folder is None:
            return []
        folder, depth = self.folder, 2
        if server is not None:
            folder, depth = (self._folder_of(server), 1) if job_id is None else (self.folder_of(server, job_id), 0)
        if fault := self._fault_above(folder / SUFFIX):
            _warn_of(fault)
            return []
        return [path for _, _, path in _journals(folder, depth)]

    def path_of(self, server: str, job_id: str, launch_id: str) -> Path | None:
        """Returns the journal of a trial; None if there is none."""
        if self.folder is None:
            return None
        path = self.folder_of(server, job_id) / f"{safe_name(launch_id)}{SUFFIX}"
        return path if os.path.lexists(path) and not self._fault_above(path) else None

    def read(self, server: str, job_id: str, launch_id: str) -> TrialRecord | None:
        """Returns what the journal of a trial says, whoever has it; None if there is none that can be read."""
        path = self.path_of(server, job_id, launch_id)
        with contextlib.suppress(OSError, ValueError):
            if path is not None:
                return read_record(path)
        return None

    def _fault_above(self, path: Path) -> str:
        """Returns why others may have written into a folder of the spool that a path is in; empty if they may not."""
        for folder in path.parents:
            if fault := _fault_of(folder, of_user=folder == self.folder):
                return fault
            if folder == self.folder:
                break
        return ""

    def _folder_of(self, server: str) -> Path:
        if self.folder is None:
            raise ValueError("the spool is off")
        return self.folder / safe_name(server_of(server))

    def warn(self, fault: object) -> None:
        """Warns once in a process that nothing is kept."""
        if not Spool._warned:
            Spool._warned = True
            log.warning(
                "trials cannot be kept in a spool (%s): what the server has not received when this process ends is "
                "lost; %s",
                *(fault, _REMEDY),
            )

    def _make_room(self, folder: Path) -> None:
        """Drops the oldest journals beyond the limits; those of running trials stay."""
        if self.folder is None:
            return
        for scope, depth, max_trials, max_bytes in (
            (folder, 0, MAX_TRIALS, MAX_BYTES),
            (self.folder, 2, MAX_TRIALS_IN_ALL, MAX_BYTES_IN_ALL),
        ):
            # What is too large for a journal must not crowd out journals.
            found = [each for each in _journals(scope, depth) if each[1] <= MOST_BYTES]
            trials, size = len(found) + 1, sum(each[1] for each in found)
            for _, bytes_of_file, path in found:
                if trials <= max_trials and size <= max_bytes:
                    break
                if drop(path, unreadable=False):
                    log.warning(
                        "the spool is full, and the undelivered trial in %s is dropped: deliver the others with "
                        "`wattwise spool send`, or drop them with `wattwise spool drop`",
                        path,
                    )
                    trials, size = trials - 1, size - bytes_of_file


def drop(path: Path, *, unreadable: bool = True) -> bool:
    """Deletes a journal unless its trial is running; returns whether it did.

    Args:
        path: the journal.
        unreadable: whether a file that cannot be read is deleted, too.
    """
    try:
        journal = Journal.open(path)
    except FileError as error:
        if not unreadable:
            return False
        try:
            path.unlink(missing_ok=True)
        except OSError as fault:
            log.warning("%s cannot be deleted: %s", shown(path), fault.strerror)
            return False
        log.warning("%s cannot be read (%s), and is deleted with what it may say of a trial", shown(path), error.fault)
        return True
    except OSError:
        return False
    if journal is None:
        return False
    journal.delete()
    return True


def safe_name(text: str) -> str:
    """Returns a text as the name of a file; a long or unusual one is cut and gets a checksum."""
    name = "".join(each if each in _SAFE or (each == "." and index) else "%" for index, each in enumerate(text))
    if name == text and 0 < len(name) <= _LONGEST_NAME:
        return name
    data = text.encode(errors="surrogatepass")
    return f"{name[:_LONGEST_NAME]}~{zlib.crc32(data):08x}{zlib.adler32(data):08x}"


def _make(folder: Path, mode: int = 0o777) -> None:
    """Creates a folder and makes its name durable, unless it exists."""
    try:
        folder.mkdir(mode)
    except FileExistsError:
        return
    # A folder that may be written need not be readable.
    with contextlib.suppress(OSError):
        sync_folder(folder.parent)


def _fault_of(folder: Path, *, of_user: bool) -> str:
    """Returns why others than this user may have written into a folder; empty if they may not, or there is none.

    Args:
        folder: the folder.
        of_user: whether the user has named it, and may have made a link of it.
    """
    try:
        found, named = folder.stat(follow_symlinks=of_user), folder.lstat()
    except OSError:
        return ""
    fault = foreign(found) if stat.S_ISDIR(found.st_mode) else "is not a folder"
    if not fault and stat.S_ISLNK(named.st_mode) and named.st_uid not in (0, os.geteuid()):
        fault = f"is a link of user {named.st_uid}"
    if not fault:
        return ""
    return f"{shown(folder)} {fault}, so that what is in it may be another user's"


def _warn_of(fault: str) -> None:
    warn_once(f"{fault}: it is not delivered; `chmod go-w` the folder if it is yours, or move it away")


def _taken_over(path: Path) -> Journal | None:
    """Returns the journal of a trial that is resumed; None if there is none, such as after its delivery.

    Raises:
        JournalInUseError: if it belongs to another process.
        OSError: if it cannot be read.
        ValueError: if the file is not a journal.
    """
    deadline = time.monotonic() + _TAKE_OVER_SECONDS
    while True:
        if (journal := Journal.open(path)) is not None:
            return journal
        if not path.exists():
            return None
        if time.monotonic() > deadline:
            raise JournalInUseError(path)
        # Most likely another process delivers it.
        time.sleep(0.02)


def _journals(folder: Path, depth: int = 0) -> list[tuple[float, int, Path]]:
    """Returns the time of the last change, size and path of all journals below a folder, oldest first.

    Args:
        folder: the folder.
        depth: how many folders lie between it and the journals.
    """
    return sorted(_walk(folder, depth))


def _walk(folder: Path, depth: int) -> Iterator[tuple[float, int, Path]]:
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            # Another process may have deleted it in between.
            with contextlib.suppress(OSError):
                yield from _below(entry, depth)


def _below(entry: os.DirEntry[str], depth: int) -> Iterator[tuple[float, int, Path]]:
    path = Path(entry.path)
    if depth:
        if entry.is_dir(follow_symlinks=False):
            if fault := _fault_of(path, of_user=False):
                _warn_of(fault)
            else:
                yield from _walk(path, depth - 1)
        return
    found = entry.stat(follow_symlinks=False)
    if path.suffix == SUFFIX:
        # Whatever it is: what cannot be read is reported.
        yield found.st_mtime, found.st_size, path
    elif path.suffix == DRAFT_SUFFIX and time.time() - found.st_mtime > _DRAFT_SECONDS:
        delete_draft(path)
