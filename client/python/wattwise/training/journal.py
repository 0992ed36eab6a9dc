"""A trial's journal: a file that has every measurement before the server, until the server knows how the trial ended.

One JSON object per line, made durable before the next step of the training:

    {"version": 1, "server": "localhost:50051", "job": {…}, "launch_id": "…", "trial_number": 7, "batch_size": 64, …}
    {"result": {"measurement": {"epoch": 1, "time_seconds": 61.2, …}, …}, "time": 1763865600.1}
    {"end_reason": "END_REASON_COMPLETED"}

The file is locked as long as its trainer lives. A file without a lock is a trial that has to be delivered.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from wattwise import v1
from wattwise.errors import InvalidAddressError, log
from wattwise.files import (
    FileError,
    foreign,
    integer_of,
    is_number,
    open_regular,
    parse_json,
    read_bytes,
    read_descriptor,
    sync_folder,
)
from wattwise.rpc.address import check_address
from wattwise.rpc.calls import new_id, trainer_end_reason
from wattwise.rules import LAST_SECOND, MAX_INT32, MAX_MEASUREMENTS, TRAINER_END_REASONS, EndReason
from wattwise.training.own_decision import own_decision
from wattwise.training.resume import carry_on, ended_by_trainer
from wattwise.variables import control_fault

SUFFIX, DRAFT_SUFFIX = ".wattwise-trial", ".wattwise-draft"
"""No other program uses these suffixes: the spool's folder may hold other files."""
DATABASE = "sqlite:"
"""What the name of the server of a `wattwise run` begins with."""
_VERSION = 1
_MOST_DRAFTS = 10
"""Drafts that other processes may complete or delete before this one has locked its own."""
_MAX_BYTES = 8 * 2**20
"""The size at which a file is rewritten without the epochs that its record has dropped."""
MOST_BYTES = 4 * _MAX_BYTES
"""The size above which a file is not read: no journal is that large."""
_FOR_GOOD = [trainer_end_reason(reason) for reason in TRAINER_END_REASONS if reason is not EndReason.PREEMPTED]
"""The reasons for which a trainer ends a trial that no checkpoint continues."""
_REMEDY = "it stays as it is; move it away to keep it, or delete it with `wattwise spool drop`"


@dataclass
class TrialRecord:
    """A trial as its trainer knows it, in the form that `ImportTrial` takes.

    Attributes:
        server: the server's address.
        job: the job as it was registered, or is to be registered.
        launch_id: the id of the trial's launch.
        trial_number: its number on the server; 0 if the server has not dispatched it.
        batch_size: its batch size.
        start_time: when it started, in seconds since 1970.
        results: its measurements by ascending epoch, each with the time at which the epoch ended.
        end_reason: why its trainer ended it; unspecified while it runs.
        refusal: why the server refused it; empty unless it did.
        base: the sums that its process counts on from, if it continues a checkpoint and could not ask the server,
            which may know of more; None otherwise.
        spare_id: names what this process trains if the trial of `launch_id` cannot continue; only with a base.
    """

    server: str
    job: v1.JobSpec
    launch_id: str
    trial_number: int
    batch_size: int
    start_time: float
    results: list[tuple[v1.TrainingResult, float]] = field(default_factory=list)
    end_reason: v1.EndReason.ValueType = v1.END_REASON_UNSPECIFIED
    refusal: str = ""
    base: v1.Measurement | None = None
    spare_id: str = ""

    @classmethod
    def from_lines(cls, lines: list[str]) -> TrialRecord:
        """Reads the lines of a journal; lines that are not complete are left out.

        Raises:
            _LineError: if a line is not that of a journal, or has a value that no trial has.
        """
        record: TrialRecord | None = None
        for number, line in enumerate(lines, 1):
            document = _json_object(line)
            if document is None:
                continue
            try:
                if record is None:
                    record = cls._from_head(document)
                else:
                    record.apply(document)
            except KeyError as error:
                raise _LineError(number, f"is not a journal's: it has no {error}") from error
            except ValueError as error:
                raise _LineError(number, f"is not a journal's: it {error}") from error
        if record is None:
            raise _LineError(1, "is not a journal's")
        return record

    @classmethod
    def _from_head(cls, head: Mapping[str, Any]) -> TrialRecord:
        if head.get("version") != _VERSION:
            raise ValueError("has another version")
        server, launch_id = _server(head["server"]), _text(head["launch_id"])
        number, size = _within(head["trial_number"], 0, MAX_INT32), _within(head["batch_size"], 1, MAX_INT32)
        record = cls(server, _message(head["job"], v1.JobSpec()), launch_id, number, size, _time(head["start_time"]))
        if "base" in head:
            record.base, record.spare_id = _message(head["base"], v1.Measurement()), _text(head["spare_id"])
        return record

    def apply(self, document: Mapping[str, Any]) -> None:
        """Applies a line after the first.

        Raises:
            KeyError: if it has no time.
            ValueError: if it has a value that no trial has.
        """
        if "result" in document:
            self.add(_message(document["result"], v1.TrainingResult()), _time(document["time"]))
        elif "left_out" in document:
            self.leave_out(_within(document["left_out"], 0, MAX_INT32))
        elif "refusal" in document:
            self.refusal = str(document["refusal"])
        elif "end_reason" in document:
            self.end_reason = v1.EndReason.Value(_text(document["end_reason"]))

    def lines(self) -> list[str]:
        """Returns the whole journal."""
        head: dict[str, object] = {
            "version": _VERSION,
            "server": self.server,
            "job": _plain(self.job),
            "launch_id": self.launch_id,
            "trial_number": self.trial_number,
            "batch_size": self.batch_size,
            "start_time": self.start_time,
        }
        if self.base is not None:
            head |= {"base": _plain(self.base), "spare_id": self.spare_id}
        lines = [head, *(_result_line(*each) for each in self.results)]
        if self.end_reason:
            lines.append({"end_reason": v1.EndReason.Name(self.end_reason)})
        if self.refusal:
            lines.append({"refusal": self.refusal})
        return [json.dumps(line) for line in lines]

    def add(self, result: v1.TrainingResult, at: float) -> None:
        """Adds a measurement; those of the same or later epochs were lost with the process that is resumed."""
        while self.results and self.results[-1][0].measurement.epoch >= result.measurement.epoch:
            self.results.pop()
        self.results.append((result, at))
        # One import delivers no more.
        del self.results[:-MAX_MEASUREMENTS]

    def leave_out(self, epoch: int) -> None:
        """Removes the measurement of an epoch."""
        self.results = [each for each in self.results if each[0].measurement.epoch != epoch]

    def resumed(self, trial: v1.Trial) -> TrialRecord:
        """Returns the record of a trial that the server was asked to resume: it carries on what the server knows."""
        if self.base is None:
            return self
        if ended_by_trainer(trial):
            # Nothing can be added to it.
            return replace(self, launch_id=self.spare_id, base=None, spare_id="")
        results = []
        for result, at in self.results:
            carried = v1.TrainingResult()
            carried.CopyFrom(result)
            carry_on(carried.measurement, self.base, trial.newest)
            results.append((carried, at))
        return replace(self, results=results, base=None, spare_id="")

    def ended_by_trainer(self, spec: v1.JobSpec) -> bool:
        """Returns whether its trainer ended the trial for good, not a decision; `spec` has all defaults filled in."""
        return self.outcome(spec) in _FOR_GOOD

    def outcome(self, spec: v1.JobSpec) -> v1.EndReason.ValueType:
        """Returns why the trial ended: as its measurements decide it without a cost bound, else as its trainer said."""
        decided = own_decision(spec, self.results[-1][0]).end_reason if self.results else v1.END_REASON_UNSPECIFIED
        return decided or self.end_reason

    @property
    def trial_id(self) -> v1.TrialId:
        """The trial's id on the server."""
        return v1.TrialId(
            job_id=self.job.job_id,
            trial_number=self.trial_number,
            launch_id=self.launch_id,
        )

    def request(self) -> v1.ImportTrialRequest:
        """Returns the request that delivers the trial; without an end reason its process was killed."""
        request = v1.ImportTrialRequest(
            job_id=self.job.job_id,
            launch_id=self.launch_id,
            batch_size=self.batch_size,
            end_reason=self.end_reason or v1.END_REASON_LOST,
        )
        request.start_time.FromNanoseconds(int(self.start_time * 1e9))
        for result, at in self.results:
            measurement = request.measurements.add()
            measurement.CopyFrom(result.measurement)
            measurement.report_time.FromNanoseconds(int(at * 1e9))
            if result.HasField("monitor"):
                request.monitor.CopyFrom(result.monitor)
        return request


class _LineError(ValueError):
    """A line of a journal that cannot be used."""

    def __init__(self, line: int, fault: str) -> None:
        super().__init__(f"line {line} {fault}")
        self.line = line
        self.fault = fault


class JournalInUseError(OSError):
    """Another process has the journal, or creates it."""


def read_record(path: Path) -> TrialRecord:
    """Returns what the journal of a trial says, whoever has locked it.

    Raises:
        FileNotFoundError: if it is gone.
        FileError: if it cannot be read, or is not a journal of this user.
    """
    _check_own(path, path.stat(follow_symlinks=False))
    return _record_in(read_bytes(path, MOST_BYTES, within=path.parent), path)


class Journal:
    """A trial's record and the file that it is kept in.

    Several sessions of a process may share it; each of them deletes or releases it once. A file that cannot be written
    never disturbs the training: this is warned of once, and the next change tries again. May be called by a signal
    handler.

    Attributes:
        record: the trial.
        path: the file; None if there is none.
        lock: held by every change; hold it to keep several changes together.
    """

    def __init__(self, record: TrialRecord, path: Path | None = None, descriptor: int = -1) -> None:
        self.record = record
        self.path = path
        self._descriptor = descriptor
        self._size = 0 if path is None else os.fstat(descriptor).st_size
        # The file lacks something of the record, or ends with a torn line.
        self._incomplete = False
        # A change is being written; a signal handler may interrupt it with another one.
        self._writing = self._interrupted = False
        self._warned = False
        self.lock = threading.RLock()
        self._users = 1
        self._undelivered = False

    @classmethod
    def create(cls, record: TrialRecord, path: Path) -> Journal:
        """Creates the file.

        Raises:
            JournalInUseError: if it exists, or another process creates it.
            OSError: if it cannot be created or locked.
        """
        return cls(record, path, _written(record, path, new=True))

    @classmethod
    def open(cls, path: Path) -> Journal | None:
        """Opens and locks the file of a trial whose process has ended; None if it still runs, or the file is gone.

        Raises:
            OSError: if the file cannot be read.
            FileError: if it is not a journal of this user.
        """
        try:
            descriptor = _opened(path)
        except FileNotFoundError:
            return None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(descriptor).st_nlink:
                content = read_descriptor(descriptor, path, MOST_BYTES)
                journal = cls(_record_in(content, path), path, descriptor)
                journal._incomplete = not content.endswith(b"\n")
                descriptor = -1
                return journal
        except BlockingIOError:
            pass
        finally:
            if descriptor >= 0:
                _close(descriptor)
        return None

    def add(self, result: v1.TrainingResult) -> None:
        """Adds a measurement, before the server is sent it."""
        with self.lock:
            # The trial is known from the first line.
            kept, at = v1.TrainingResult(), time.time()
            kept.CopyFrom(result)
            kept.ClearField("trial")
            self.record.add(kept, at)
            self._append(_result_line(kept, at))

    def leave_out(self, epoch: int) -> None:
        """Removes a measurement, which the server refused."""
        with self.lock:
            self.record.leave_out(epoch)
            self._append({"left_out": epoch})

    def resume(self) -> None:
        """Records that the trial goes on after all."""
        with self.lock:
            if self.record.end_reason or self.record.refusal:
                self.replace(replace(self.record, end_reason=v1.END_REASON_UNSPECIFIED, refusal=""))

    def share(self) -> bool:
        """Adds a user; returns whether the file is open."""
        with self.lock:
            self._users += self.kept
            return self.kept

    def count_from(self, base: v1.Measurement) -> None:
        """Records the sums that this process counts on from, unless an earlier one did, without the server as well."""
        with self.lock:
            if self.record.base is None:
                self.replace(replace(self.record, base=base, spare_id=new_id()))

    def carry_on(self, trial: v1.Trial) -> None:
        """Carries on what the server knows of the trial, if a process has counted without it."""
        with self.lock:
            if self.record.base is not None:
                self.replace(self.record.resumed(trial))

    def replace(self, record: TrialRecord) -> None:
        """Writes the record of the trial anew."""
        with self.lock:
            self.record = record
            self._incomplete = True
            self._append({})

    def end(self, reason: v1.EndReason.ValueType) -> None:
        """Records why the trainer ends the trial; the first reason counts."""
        with self.lock:
            if not self.record.end_reason:
                self.record.end_reason = reason
                self._append({"end_reason": v1.EndReason.Name(reason)})

    def refuse(self, refusal: str) -> None:
        """Records why the server refused the trial."""
        with self.lock:
            self.record.refusal = refusal
            self._append({"refusal": refusal})

    def delete(self) -> None:
        """Deletes the file with its last user, unless another one released it: the server knows how the trial ended."""
        with self.lock:
            if self._users == 1 and not self._undelivered and self._descriptor >= 0 and self.path is not None:
                with contextlib.suppress(OSError):
                    self.path.unlink(missing_ok=True)
            self.leave()

    def release(self) -> None:
        """Leaves the file to whoever delivers it."""
        with self.lock:
            self._undelivered = True
            self.leave()

    def leave(self) -> None:
        """Leaves the file to its other users, or to whoever delivers it."""
        with self.lock:
            self._users -= 1
            if self._users <= 0 <= self._descriptor:
                descriptor, self._descriptor = self._descriptor, -1
                _close(descriptor)

    @property
    def kept(self) -> bool:
        """Whether the file is open."""
        return self._descriptor >= 0

    def _append(self, line: Mapping[str, object]) -> None:
        if self._descriptor < 0 or self.path is None:
            return
        data = f"{json.dumps(line)}\n".encode()
        if self._writing:
            # The interrupted change may need the descriptor, and may have written a part of a line.
            self._interrupted = True
            with contextlib.suppress(OSError):
                _write(self._descriptor, b"\n" + data)
            return
        self._writing = True
        try:
            self._write_change(data, self.path)
            while self._interrupted:
                self._interrupted = False
                self._rewrite(self.path)
            self._incomplete = False
        except (OSError, FileError) as error:
            self._incomplete = True
            if not self._warned:
                self._warned = True
                log.warning(
                    "the journal of this trial cannot be written (%s); training continues, but what the server has not "
                    "received when the process is killed is lost",
                    error,
                )
        finally:
            self._writing = False

    def _write_change(self, data: bytes, path: Path) -> None:
        if self._incomplete or self._size + len(data) > _MAX_BYTES:
            self._rewrite(path)
            return
        self._incomplete = True
        _write(self._descriptor, data)
        self._size += len(data)

    def _rewrite(self, path: Path) -> None:
        before, self._descriptor = self._descriptor, _written(self.record, path, new=False)
        self._size = os.fstat(self._descriptor).st_size
        _close(before)


def _written(record: TrialRecord, path: Path, *, new: bool) -> int:
    """Writes a record as a whole; returns the descriptor that locks the file.

    It gets its name when it is locked and complete, so that nobody finds it before.

    Raises:
        JournalInUseError: if another process writes it, or it is to be new and exists.
        OSError: if it cannot be written or locked.
    """
    draft = path.with_suffix(DRAFT_SUFFIX)
    descriptor = _locked_draft(draft)
    try:
        # Only who has locked the draft gives a file its name.
        if new and path.exists():
            raise JournalInUseError(f"{path} exists")  # noqa: TRY301 - the draft is deleted
        os.ftruncate(descriptor, 0)
        _write(descriptor, "".join(f"{line}\n" for line in record.lines()).encode())
        draft.replace(path)
        sync_folder(path.parent)
    except BaseException:
        # Before the lock is released: the next draft belongs to another process.
        with contextlib.suppress(OSError):
            if _is_file(descriptor, draft):
                draft.unlink()
        _close(descriptor)
        raise
    return descriptor


def _locked_draft(draft: Path) -> int:
    """Opens or creates a draft, and locks it.

    Raises:
        JournalInUseError: if another process has locked it.
        OSError: if it cannot be created or locked.
    """
    for _ in range(_MOST_DRAFTS):
        descriptor = _opened(draft, os.O_CREAT)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Another process may have completed or deleted it in between.
            if _is_file(descriptor, draft):
                return descriptor
        except BlockingIOError as error:
            _close(descriptor)
            raise JournalInUseError(f"{draft} is being written") from error
        except OSError:
            with contextlib.suppress(OSError):
                draft.unlink(missing_ok=True)
            _close(descriptor)
            raise
        _close(descriptor)
    raise JournalInUseError(f"{draft} is being replaced")


def delete_draft(draft: Path) -> None:
    """Deletes the draft of a process that was killed while it wrote it; one that is being written stays.

    Raises:
        OSError: if it is being written, or cannot be deleted.
    """
    descriptor = _locked_draft(draft)
    try:
        draft.unlink()
    finally:
        _close(descriptor)


def _is_file(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def _write(descriptor: int, data: bytes) -> None:
    if os.write(descriptor, data) < len(data):
        raise OSError("no space left")
    os.fsync(descriptor)


def _result_line(result: v1.TrainingResult, at: float) -> dict[str, object]:
    return {"result": _plain(result), "time": at}


def _plain(message: v1.TrainingResult | v1.Measurement | v1.JobSpec) -> dict[str, Any]:
    from google.protobuf.json_format import MessageToDict  # noqa: PLC0415 - few processes need it

    return MessageToDict(message, preserving_proto_field_name=True)


def _record_in(content: bytes, path: Path) -> TrialRecord:
    try:
        return TrialRecord.from_lines(content.decode(errors="replace").split("\n"))
    except _LineError as error:
        raise FileError(path, error.fault, _REMEDY, error.line) from error


def _check_own(path: Path, found: os.stat_result) -> None:
    if fault := foreign(found):
        raise FileError(path, fault, f"only journals of user {os.geteuid()} are used: {_REMEDY}")


def _json_object(line: str) -> dict[str, Any] | None:
    try:
        document = parse_json(line)
    except ValueError:
        return None
    return document if isinstance(document, dict) else None


_Message = TypeVar("_Message", v1.JobSpec, v1.TrainingResult, v1.Measurement)


def _message(document: object, message: _Message) -> _Message:
    """Returns the message that `_plain` made a JSON object of.

    Raises:
        ValueError: if it is none.
    """
    from google.protobuf.json_format import ParseDict, ParseError  # noqa: PLC0415 - few processes need it

    if not isinstance(document, dict):
        raise ValueError(f"has {document!r:.80} in place of an object")  # noqa: TRY004 - of a file, not of a caller
    try:
        return ParseDict(document, message, ignore_unknown_fields=True)
    except (ParseError, ArithmeticError, AttributeError, TypeError) as error:
        raise ValueError(f"has a value that cannot be used: {error!s:.200}") from error


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"has {value!r:.80} in place of a text")  # noqa: TRY004 - of a file, not of a caller
    return value


def _server(value: object) -> str:
    """Returns a server's address, or the database of the server of a `wattwise run`."""
    server = _text(value)
    fault = control_fault(server) if server.startswith(DATABASE) else ""
    try:
        if not server.startswith(DATABASE):
            check_address(server)
    except InvalidAddressError:
        fault = "is no address"
    if fault:
        raise ValueError(f"has the server {server!r:.80}, which {fault}")
    return server


def _within(value: object, least: int, most: int) -> int:
    number = integer_of(value)
    if number is None or not least <= number <= most:
        raise ValueError(f"has {value!r:.80} in place of an integer from {least} to {most}")
    return number


def _time(value: object) -> float:
    if not is_number(value) or not 0 <= value < LAST_SECOND + 1:
        raise ValueError(f"has {value!r:.80} in place of a time in seconds since 1970")
    return float(value)


_descriptors: set[int] = set()
"""The files of this process that are locked, or about to be."""
_forking = threading.RLock()
"""Held while a descriptor is opened or closed: no child inherits one that it does not know."""


def _opened(path: Path, flags: int = 0) -> int:
    with _forking:
        descriptor = open_regular(path, os.O_RDWR | os.O_APPEND | os.O_NOFOLLOW | flags, mode=0o600)
        try:
            _check_own(path, os.fstat(descriptor))
        except FileError:
            os.close(descriptor)
            raise
        _descriptors.add(descriptor)
        return descriptor


def _close(descriptor: int) -> None:
    with _forking:
        _descriptors.discard(descriptor)
        os.close(descriptor)


def _close_in_child() -> None:
    # A data-loader worker must not hold the lock of a trainer that was killed.
    for descriptor in _descriptors:
        with contextlib.suppress(OSError):
            os.close(descriptor)
    _descriptors.clear()
    _forking.release()


os.register_at_fork(before=_forking.acquire, after_in_parent=_forking.release, after_in_child=_close_in_child)
