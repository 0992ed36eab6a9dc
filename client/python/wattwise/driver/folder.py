"""A run's folder: which one it is, and whose turn is next where several drivers share it.

    <log_dir>/<job id>/
        run.json          the job id of this run, and the one in the job file
        history.jsonl     a line per trial that is over
        launches/N.json   the launches that are not over: made, on the disk, before the server is asked
        trial-N/          what trial N left: output.log, result.json, whatever the command writes there

A launch is somebody's for as long as its file is locked. The lock goes with the death of its driver and of whatever the
driver started, and then the launch can be taken over.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from urllib.parse import quote

from wattwise.driver.durable import locked, read_json, try_lock, write_json
from wattwise.driver.history import History, Record
from wattwise.driver.interruption import uninterrupted
from wattwise.errors import WattwiseError
from wattwise.rpc.client import new_request_id

_NUMBERED = 9_999


class TriesInVainError(WattwiseError):
    """A recurrence has had as many trials as it may, and none reached the target."""


@dataclass(frozen=True)
class Launch:
    """One launch of the command.

    Attributes:
        number: within the run, from 0.
        recurrence: what it is for, from 1.
        try_number: which try of the recurrence it is, from 1.
        request_id: under which the server gives it one trial and no other.
    """

    number: int
    recurrence: int
    try_number: int
    request_id: str


class Claim:
    """A launch that is this driver's until it is given up or the driver dies.

    Attributes:
        launch: the launch.
        lock: the descriptor of the lock.
    """

    def __init__(self, launch: Launch, path: Path, lock: int) -> None:
        self.launch = launch
        self.lock = lock
        self._path = path

    def leave(self) -> None:
        """Lets others take the launch over."""
        if self.lock >= 0:
            os.close(self.lock)
            self.lock = -1

    def forget(self) -> None:
        """The launch is over."""
        self._path.unlink(missing_ok=True)
        self.leave()


class RunFolder:
    """The folder of one run.

    Args:
        path: where it is.
        job_id: the run's job.
    """

    def __init__(self, path: Path, job_id: str) -> None:
        self.path = path
        self.job_id = job_id
        self.history = History(path / "history.jsonl")
        self._launches = path / "launches"
        self._launches.mkdir(exist_ok=True)

    @classmethod
    def open(cls, log_dir: Path, job_id: str, *, fresh: bool) -> RunFolder:
        """The newest run of a job, or a fresh one beside it: "mnist-nightly-2", folder and job id alike.

        Raises:
            WattwiseError: if there can be no folder there.
        """
        try:
            log_dir.mkdir(parents=True, exist_ok=True)
            with locked(log_dir / ".lock"):
                return cls(*_opened(log_dir, job_id, fresh=fresh))
        except OSError as error:
            raise WattwiseError(f"runs cannot be kept in {log_dir} (log_dir): {error.strerror}") from error

    def trial_folder(self, number: int) -> Path:
        """Where trial `number` leaves what it makes."""
        return self.path / f"trial-{number:04}"

    def claim(self, recurrences: int, max_tries: int) -> Claim | None:
        """The next launch that nobody has: one that was left in the middle, else one of the first open recurrence.

        Returns:
            None while others have all that is left, and when nothing is left.

        Raises:
            TriesInVainError: if the first open recurrence has had its tries.
        """
        with uninterrupted(), locked(self.path / ".lock"):
            done = self.history.read()
            over = {record.launch for record in done}
            busy, known = set(), max(over, default=-1)
            for path in sorted(self._launches.glob("*.json")):
                launch = _read(path)
                if launch is None or launch.number in over:
                    path.unlink()
                    continue
                lock = try_lock(path)
                if lock is not None:
                    return Claim(launch, path, lock)
                busy.add(launch.recurrence)
                known = max(known, launch.number)
            reached = {record.recurrence for record in done if record.reached}
            for recurrence in range(1, recurrences + 1):
                if recurrence not in reached and recurrence not in busy:
                    return self._make(known + 1, recurrence, done, max_tries)
        return None

    def is_done(self, recurrences: int) -> bool:
        """Whether every recurrence has its model."""
        reached = {record.recurrence for record in self.history.read() if record.reached}
        return reached >= set(range(1, recurrences + 1))

    def settle(self, claim: Claim, record: Record) -> None:
        """Writes down what became of a launch."""
        with uninterrupted(), locked(self.path / ".lock"):
            self.history.append(record)
            claim.forget()

    def _make(self, number: int, recurrence: int, done: list[Record], max_tries: int) -> Claim:
        tries = [record for record in done if record.recurrence == recurrence]
        in_vain = [record for record in tries if record.in_vain]
        if len(in_vain) >= max_tries:
            raise TriesInVainError(_advice(recurrence, in_vain, max_tries))
        launch = Launch(number, recurrence, len(tries) + 1, new_request_id())
        path = self._launches / f"{number:06}.json"
        write_json(path, asdict(launch))
        lock = try_lock(path)
        if lock is None:
            raise WattwiseError(f"{path} was made just now and is locked by somebody else; what else uses this folder?")
        return Claim(launch, path, lock)


def folder_name(job_id: str) -> str:
    """The job id as the name of a folder: itself, but for characters that a folder's name cannot have."""
    name = quote(job_id, safe=" !#$&'()+,;=@[]{}~")
    return name.replace(".", "%2E") if name in (".", "..") else name


def _advice(recurrence: int, tries: list[Record], max_tries: int) -> str:
    ends = Counter(record.end_reason for record in tries)
    how = ", ".join(f"{count} by {reason}" for reason, count in ends.most_common())
    return (
        f"recurrence {recurrence} has had {len(tries)} trials in vain (max_tries = {max_tries}); they ended: {how}. "
        "Lower target_metric, raise max_epochs or give other batch_sizes under a new job_id, mend the command if it "
        "fails, or raise max_tries to go on"
    )


def _opened(log_dir: Path, job_id: str, *, fresh: bool) -> tuple[Path, str]:
    taken = list(_runs(log_dir, job_id))
    if taken and not fresh:
        return taken[-1]
    name = next(n for n in _names(job_id) if read_json(log_dir / folder_name(n) / "run.json") is None)
    path = log_dir / folder_name(name)
    path.mkdir(exist_ok=True)
    write_json(path / "run.json", {"job_id": name, "job_file_id": job_id})
    return path, name


def _runs(log_dir: Path, job_id: str) -> Iterator[tuple[Path, str]]:
    """The runs of a job file's id, oldest first."""
    for name in _names(job_id):
        path = log_dir / folder_name(name)
        about = read_json(path / "run.json")
        if about is not None and about.get("job_file_id") == job_id:
            yield path, name
        elif not path.exists():
            return


def _names(job_id: str) -> Iterator[str]:
    yield job_id
    for number in range(2, _NUMBERED):
        yield f"{job_id}-{number}"


def _read(path: Path) -> Launch | None:
    found = read_json(path)
    with suppress(KeyError, TypeError, ValueError):
        if found is not None:
            return Launch(
                int(found["number"]), int(found["recurrence"]), int(found["try_number"]), str(found["request_id"])
            )
    return None
