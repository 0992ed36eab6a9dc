"""A run's folder: which one it is, and which launch is next where several drivers share it.

    <log_dir>/<job id>/
        run.json          the job id of this run, the one in the job file, and the server
        history.jsonl     one line per ended trial
        launches/N.json   open launches: durable before the server is asked for the trial
        trial-N/          files of trial N: output.log, result.json, files that the command writes

A launch belongs to the driver that holds the lock on its file. The kernel releases the lock when the driver and all
processes that it started have died; another driver can then take the launch over.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from urllib.parse import quote

from wattwise.driver.files import locked, read_object, try_lock, values_of, write_json, writing
from wattwise.driver.history import History, HistoryRecord
from wattwise.driver.interruption import uninterrupted
from wattwise.errors import WattwiseError, log
from wattwise.files import FileError, shown
from wattwise.rpc.address import server_of
from wattwise.rpc.calls import new_id
from wattwise.rules import MAX_INT32

ADVICE = (
    "register the job under a new job_id with other batch_sizes, an easier target, a larger max_epochs or a "
    "larger beta_knob"
)
"""Against missed targets, in the server's words."""

_STEPS = {
    "fix the command": {"error", "completed", "lost"},
    ADVICE: {"cost bound", "max epochs"},
    "register the job under a new job_id with smaller batch_sizes": {"out of memory"},
}
"""What helps against the end reasons of failed trials."""

_MAX_RUNS = 9_999
_LAUNCH_ID = re.compile(r"[!-~]{1,128}")
_ABOUT = "run.json"
OWN_SERVER = "its own server"
"""The server that a run starts itself, in place of an address."""
_UNREADABLE = ".unreadable"


class TriesExhaustedError(WattwiseError):
    """The trials that `max_tries` allows a recurrence have all missed the target."""


@dataclass(frozen=True)
class LaunchRecord:
    """One launch of the command, as its file in `launches/` has it.

    Attributes:
        number: within the run, from 0.
        recurrence: the recurrence that it belongs to, from 1.
        try_number: the try within its recurrence, from 1.
        launch_id: makes the request for its trial repeatable.
    """

    number: int
    recurrence: int
    try_number: int
    launch_id: str

    def __post_init__(self) -> None:
        for name, least in (("number", 0), ("recurrence", 1), ("try_number", 1)):
            if not least <= getattr(self, name) <= MAX_INT32:
                raise ValueError(f"has {name} {getattr(self, name)!r:.80}, which is not from {least} to {MAX_INT32}")
        if not _LAUNCH_ID.fullmatch(self.launch_id):
            raise ValueError(f"has launch_id {self.launch_id!r:.80}, which is not the id of a launch")


class Claim:
    """A launch that belongs to this driver until it is released or the driver dies.

    Attributes:
        launch: the launch.
        lock: the descriptor that holds the lock.
    """

    def __init__(self, launch: LaunchRecord, path: Path, lock: int) -> None:
        self.launch = launch
        self.lock = lock
        self._path = path

    def release(self) -> None:
        """Lets another driver take the launch over."""
        if self.lock >= 0:
            os.close(self.lock)
            self.lock = -1

    def remove(self) -> None:
        """Removes the launch, which has ended."""
        self._path.unlink(missing_ok=True)
        self.release()


class RunFolder:
    """The folder of one run.

    Args:
        path: its path.
        job_id: the run's job id.
    """

    def __init__(self, path: Path, job_id: str) -> None:
        self.path = path
        self.job_id = job_id
        self.history = History(path / "history.jsonl")
        self._launches = path / "launches"
        self._launches.mkdir(exist_ok=True)

    @classmethod
    def open(cls, log_dir: Path, job_id: str, *, fresh: bool) -> RunFolder:
        """Returns the newest run of a job, or a new one beside it: "mnist-nightly-2", both folder and job id.

        Raises:
            WattwiseError: if the folder cannot be created.
        """
        try:
            log_dir.mkdir(parents=True, exist_ok=True)
            with locked(log_dir / ".lock"):
                return cls(*_newest_or_new(log_dir, job_id, fresh=fresh))
        except OSError as error:
            raise WattwiseError(f"log_dir {log_dir} cannot be used: {error.strerror}") from error

    def change_server(self, server: str) -> str:
        """Notes the server that the run uses from now on, its address or `OWN_SERVER`.

        Returns:
            The server that the run's trials were reported to so far, if it is another one; else empty.
        """
        path = self.path / _ABOUT
        with uninterrupted(), locked(self.path / ".lock"):
            about = read_object(path) or {}
            # An older version noted none.
            before = str(about.get("server") or (OWN_SERVER if (self.path / "wattwise.db").exists() else ""))
            if server_of(before) == server_of(server):
                return ""
            write_json(path, {**about, "server": server})
            return before if self.history.read() else ""

    def trial_folder(self, number: int) -> Path:
        """Returns the folder of trial `number`."""
        return self.path / f"trial-{number:04}"

    def claim(self, recurrences: int, max_tries: int) -> Claim | None:
        """Returns the next free launch: an abandoned one, else a new one for the first open recurrence.

        Returns:
            None if nothing is left, or if other drivers have all that is left.

        Raises:
            TriesExhaustedError: if the first open recurrence has had `max_tries` failed trials.
        """
        with uninterrupted(), locked(self.path / ".lock"):
            records = self.history.read()
            ended = {record.launch for record in records}
            busy, newest = set(), max(ended, default=-1)
            for path in sorted(self._launches.glob("*.json")):
                launch = _read_launch(path)
                if launch is None or launch.number in ended:
                    # What cannot be read has been reported, and is kept.
                    aside = path.with_name(f"{path.stem}-{new_id()}{_UNREADABLE}")
                    with writing(path):
                        path.rename(aside) if launch is None else path.unlink()
                    continue
                lock = try_lock(path)
                if lock is not None:
                    return Claim(launch, path, lock)
                busy.add(launch.recurrence)
                newest = max(newest, launch.number)
            reached = {record.recurrence for record in records if record.reached}
            for recurrence in range(1, recurrences + 1):
                if recurrence not in reached and recurrence not in busy:
                    tries = [record for record in records if record.recurrence == recurrence]
                    return self._new_launch(newest + 1, recurrence, tries, max_tries)
        return None

    def is_done(self, recurrences: int) -> bool:
        """Returns whether every recurrence has reached the target."""
        reached = {record.recurrence for record in self.history.read() if record.reached}
        return sum(0 < recurrence <= recurrences for recurrence in reached) == recurrences

    def record(self, claim: Claim, record: HistoryRecord) -> None:
        """Adds an ended launch to the history and removes its claim."""
        with uninterrupted(), locked(self.path / ".lock"):
            self.history.append(record)
            claim.remove()

    def remove(self, claim: Claim) -> None:
        """Removes a launch whose trial was deleted."""
        with uninterrupted(), locked(self.path / ".lock"):
            claim.remove()

    def _new_launch(self, number: int, recurrence: int, tries: list[HistoryRecord], max_tries: int) -> Claim:
        failed = [record for record in tries if record.failed]
        if len(failed) >= max_tries:
            reasons = Counter(record.end_reason for record in failed).most_common()
            steps = [step for step, against in _STEPS.items() if against & dict(reasons).keys()] + ["raise max_tries"]
            raise TriesExhaustedError(
                f"recurrence {recurrence} has had {len(failed)} failed trials (max_tries = {max_tries}); end reasons: "
                f"{', '.join(f'{reason} ({count})' for reason, count in reasons)}. What may help: "
                f"{', or '.join(steps)}. --fresh begins a new run"
            )
        launch = LaunchRecord(number, recurrence, len(tries) + 1, new_id())
        path = self._launches / f"{number:06}.json"
        write_json(path, asdict(launch))
        lock = try_lock(path)
        if lock is None:
            raise WattwiseError(f"{path} is new and already locked: another program uses this folder")
        return Claim(launch, path, lock)


def folder_name(job_id: str) -> str:
    """Returns the job id as a folder name; characters that a file name cannot have are percent-encoded."""
    name = quote(job_id, safe=" !#$&'()+,;=@[]{}~")
    return name.replace(".", "%2E") if name in (".", "..") else name


def _newest_or_new(log_dir: Path, job_id: str, *, fresh: bool) -> tuple[Path, str]:
    runs = list(_runs(log_dir, job_id))
    if runs and not fresh:
        path, name, fault = runs[-1]
        if fault is not None:
            raise WattwiseError(f"{fault}, or start a new run with --fresh")
        return path, name
    name = next(n for n in _names(job_id) if not _is_used(log_dir / folder_name(n)))
    path = log_dir / folder_name(name)
    path.mkdir(exist_ok=True)
    write_json(path / _ABOUT, {"job_id": name, "job_file_id": job_id})
    return path, name


def _runs(log_dir: Path, job_id: str) -> Iterator[tuple[Path, str, FileError | None]]:
    """Yields the runs of a job file's job, oldest first, each with why it cannot be continued."""
    for name in _names(job_id):
        path = log_dir / folder_name(name)
        try:
            about = read_object(path / _ABOUT)
        except FileError as error:
            yield path, name, error
            continue
        if about is not None and about.get("job_file_id") == job_id:
            yield path, name, None
        elif not path.exists():
            return


def _is_used(path: Path) -> bool:
    """Returns whether a path is no folder, or a folder that has a run, even one that cannot be read."""
    return os.path.lexists(path / _ABOUT) or (os.path.lexists(path) and not path.is_dir())


def _names(job_id: str) -> Iterator[str]:
    yield job_id
    for number in range(2, _MAX_RUNS):
        yield f"{job_id}-{number}"


def _read_launch(path: Path) -> LaunchRecord | None:
    """Returns the launch in a file; None if it cannot be read, which is logged."""
    try:
        document = None if path.is_symlink() else read_object(path)
        if document is not None:
            return LaunchRecord(**values_of(LaunchRecord, document))
        fault = f"{shown(path)} is a link or gone"
    except FileError as error:
        fault = str(error)
    except ValueError as error:
        fault = f"{shown(path)} {error}"
    log.warning("%s: its launch is given up; the file is kept, with a name that ends in %s", fault, _UNREADABLE)
    return None
