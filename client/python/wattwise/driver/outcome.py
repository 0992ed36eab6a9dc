"""How a command ended, and the files that it left in its trial's folder.

Files in a trial's folder:

output.log      stdout and stderr of the command
result.json     written by a command without a client: {"metric": 0.98, "epochs": 7}; any command may add
                "limit_watts_per_gpu"
client.json     written by a client in the command when it joins the trial: a `ClientFile`
measuring.json  written by the driver now and then while the command runs: a `LaunchOutcome` without its end
ended.json      written by the supervisor when the command has ended by itself: {"exit_code": 0, "time_seconds": 3.2}
measured.json   written by the driver once the command has ended: a `LaunchOutcome`
"""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from wattwise import v1
from wattwise.driver.files import Read, WriteError, read_object, values_of, write_json
from wattwise.errors import log
from wattwise.files import FileError, integer_of, is_number, read_end, read_json, shown
from wattwise.monitor.kind import MonitorKinds
from wattwise.rules import MAX_INT32
from wattwise.streams import printable
from wattwise.training.client_file import ClientFile, power_fault_of, power_limit_of
from wattwise.training.resume import Sums
from wattwise.training.windows import training_result

OUTPUT = "output.log"
RESULT = "result.json"
ENDED = "ended.json"
_MEASURING, _MEASURED = "measuring.json", "measured.json"
_EPOCHS = range(1, MAX_INT32 + 1)
"""What the server takes for the number of an epoch."""
RUNNING = -1
"""Replaces the exit status while the command runs."""
_QUOTED_LINES, _QUOTED_CHARACTERS, _READ_BYTES = 10, 500, 16_384
_TERMINAL_SEQUENCE = re.compile(r"\x1b(\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(\x07|\x1b\\)|[ -/]+[0-~])")
_PREEMPTED = {128 + signal.SIGTERM, 128 + signal.SIGINT, 128 + signal.SIGHUP}

T = TypeVar("T")


class MeasuredEpoch(NamedTuple):
    """An epoch whose metric was in the output, with the sums up to it as the driver measured them."""

    epoch: int
    metric: float
    time_seconds: float
    energy_joules: float

    def result(self, trial: v1.TrialId, monitor: MonitorKinds) -> v1.TrainingResult:
        """Returns the measurement as the server takes it."""
        sums = Sums(self.epoch, self.time_seconds, self.energy_joules)
        return training_result(trial, sums, self.metric, monitor)


@dataclass(frozen=True)
class LaunchOutcome:
    """A command that has ended.

    Attributes:
        exit_code: its exit status, 128 + N if signal N ended it; `RUNNING` before.
        time_seconds: from its start to its end.
        energy_joules: what the driver's monitor measured meanwhile.
        over_cost_bound: whether the driver has reported a cost above the bound.
        monitor: what the energy comes from.
        epochs: those whose metrics were in the output.
    """

    exit_code: int
    time_seconds: float
    energy_joules: float
    over_cost_bound: bool = False
    monitor: MonitorKinds = field(default_factory=MonitorKinds)
    epochs: tuple[MeasuredEpoch, ...] = ()

    @property
    def end_reason(self) -> v1.EndReason.ValueType:
        """The end reason of a trial that the server has not decided.

        SIGTERM, SIGINT and SIGHUP are preemptions. SIGKILL (137) is an error: the kernel sends it when memory is
        short, but other senders are possible.
        """
        if self.exit_code == 0:
            return v1.END_REASON_STOPPED_EARLY
        return v1.END_REASON_PREEMPTED if self.exit_code in _PREEMPTED else v1.END_REASON_ERROR

    def save(self, folder: Path) -> None:
        """Keeps it in the trial's folder, for the next driver if this one dies before the server has the result.

        A full disk does not end a training.
        """
        with suppress(WriteError):
            write_json(folder / (_MEASURING if self.exit_code == RUNNING else _MEASURED), asdict(self))


def described(exit_code: int) -> str:
    """Returns an exit status with what a status above 128 usually means: "137 (killed by SIGKILL, …)"."""
    if exit_code == 128 + signal.SIGKILL:
        return f"{exit_code} (killed by SIGKILL, perhaps by the kernel because memory ran out)"
    try:
        return f"{exit_code} (ended by {signal.Signals(exit_code - 128).name})"
    except ValueError:
        return str(exit_code)


def saved_outcome(folder: Path, max_power_watts: float) -> LaunchOutcome | None:
    """Returns the outcome of a command whose driver has died; None if the command did not end by itself.

    What the driver did not measure any more is estimated from the mean power until then, or from the maximum power.
    """
    if (saved := _read_outcome(folder, _MEASURED)) is not None:
        return saved
    ended, measured = _read(folder, ENDED, _End), _read_outcome(folder, _MEASURING)
    if ended is None or measured is None:
        return None
    watts = measured.energy_joules / measured.time_seconds if measured.time_seconds else max_power_watts
    unmeasured = max(0.0, ended.time_seconds - measured.time_seconds)
    return replace(
        measured,
        exit_code=ended.exit_code,
        time_seconds=measured.time_seconds + unmeasured,
        energy_joules=measured.energy_joules + unmeasured * watts,
        monitor=measured.monitor.with_failure() if unmeasured else measured.monitor,
    )


@dataclass(frozen=True)
class _End:
    """What the supervisor has written."""

    exit_code: int
    time_seconds: float


def _read_outcome(folder: Path, name: str) -> LaunchOutcome | None:
    return _read(folder, name, LaunchOutcome, epochs=_epochs)


def _read(folder: Path, name: str, kind: type[T], **others: Read) -> T | None:
    """Returns what a file of the driver says; None if it is missing or, with a log line, unusable."""
    path = folder / name
    try:
        saved = read_object(path, within=folder)
        if saved is None:
            return None
        return kind(**_not_negative(values_of(kind, saved, **others)))
    except FileError as error:
        fault = str(error)
    except ValueError as error:
        fault = f"{shown(path)} {error}"
    log.warning("%s: what it says of the trial is lost; only `wattwise run` may write it", fault)
    return None


def _not_negative(values: dict[str, Any]) -> dict[str, Any]:
    for name in ("time_seconds", "energy_joules"):
        if values.get(name, 0.0) < 0:
            raise ValueError(f"has {name} {values[name]:g}, which is below 0")
    return values


def _epochs(value: object) -> tuple[MeasuredEpoch, ...] | None:
    """Returns the epochs in a JSON document; None if they are none."""
    epochs = []
    for each in value if isinstance(value, list) else [None]:
        match each:
            case [number, metric, seconds, joules] if (
                all(map(is_number, each))
                and integer_of(number) in _EPOCHS
                and all(0 <= used <= sys.float_info.max for used in (seconds, joules))
            ):
                epochs.append(MeasuredEpoch(int(number), float(metric), float(seconds), float(joules)))
            case _:
                return None
    return tuple(epochs)


def saved_epochs(folder: Path) -> LaunchOutcome | None:
    """Returns what is known of a command that died with its driver; None if nothing is."""
    return _read_outcome(folder, _MEASURING)


def ended_by_itself(folder: Path) -> bool:
    """Returns whether the command ended before its driver asked it to."""
    return os.path.lexists(folder / ENDED)


def has_client(folder: Path) -> bool:
    """Returns whether a client in the command has joined the trial."""
    return ClientFile.read(folder).joined


def power_limit_in(folder: Path) -> float | None:
    """Returns the power limit in result.json, else in client.json, in watts; None if neither has one."""
    with suppress(FileError):
        if (limit := power_limit_of(read_object(folder / RESULT, within=folder) or {})) is not None:
            return limit
    return ClientFile.read(folder).limit_watts_per_gpu


def ignored_in(folder: Path) -> Iterator[str]:
    """Yields what is not used of the files that a command has left, although its trial has a result."""
    if fault := ClientFile.read(folder).fault:
        yield fault
    path = folder / RESULT
    try:
        if fault := power_fault_of(read_object(path, within=folder) or {}):
            yield f"{shown(path)} has {fault}; it is ignored"
    except FileError as error:
        yield f"{error}; it is ignored"


def last_lines(folder: Path) -> list[str]:
    """Returns the last lines of a command's output that are not blank, shortened, without control characters."""
    try:
        text = read_end(folder / OUTPUT, _READ_BYTES, within=folder).decode(errors="replace")
    except (OSError, FileError):
        return []
    lines = (shown_line(line) for line in text.split("\n"))
    return [line for line in lines if line][-_QUOTED_LINES:]


def shown_line(line: str) -> str:
    """Returns a line of a command's output for a terminal, shortened.

    Sequences and characters that set colours, move the cursor or reverse the text are removed or escaped. Of a progress
    bar, which overwrites itself, only the last state is left.
    """
    last = without_terminal_sequences(line).rstrip().rpartition("\r")[2].rstrip()
    text = printable(last.expandtabs(4))
    return text if len(text) <= _QUOTED_CHARACTERS else f"{text[: _QUOTED_CHARACTERS - 1]}…"


def without_terminal_sequences(text: str) -> str:
    """Returns the text without sequences that set colours or move the cursor of a terminal."""
    return _TERMINAL_SEQUENCE.sub("", text) if "\x1b" in text else text


class ResultError(ValueError):
    """result.json is missing or malformed; the message shows what to write."""


def read_result(folder: Path) -> tuple[float, int]:
    """Reads the final validation metric, which may be NaN, and the number of trained epochs from result.json.

    Raises:
        ResultError: if it is missing or malformed.
    """
    path = folder / RESULT
    try:
        document = read_json(path, within=folder)
    except FileNotFoundError:
        raise _fault(path, "is missing") from None
    except FileError as error:
        raise _fault(path, error.fault, error.line) from error
    if not isinstance(document, dict):
        raise _fault(path, "is not a JSON object")
    metric, epochs = document.get("metric"), integer_of(document.get("epochs"))
    if not is_number(metric):
        raise _fault(path, f"has metric {metric!r:.80}, which is not a number")
    if epochs is None or epochs not in _EPOCHS:
        wanted = f"an integer from 1 to {_EPOCHS[-1]:,}"
        raise _fault(path, f"has epochs {document.get('epochs')!r:.80}, which is not {wanted}")
    return float(metric), epochs


def _fault(path: Path, fault: str, line: int | None = None) -> ResultError:
    remedy = (
        "a command without a client must write it before it exits with status 0, such as "
        '{"metric": 0.98, "epochs": 7}, or print its metrics, with metric_pattern in [train]'
    )
    return ResultError(str(FileError(path, fault, remedy, line)))
