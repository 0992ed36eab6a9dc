"""How a command ended, and what it left behind: from outside that is all that is known of a training."""

from __future__ import annotations

import json
import math
import signal
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from wattwise import v1
from wattwise.driver.durable import read_json, write_json
from wattwise.training.joined import POWER_LIMIT

RESULT, MEASURED = "result.json", "measured.json"

_TAKEN_AWAY = {128 + signal.SIGTERM, 128 + signal.SIGINT, 128 + signal.SIGHUP}


@dataclass(frozen=True)
class Outcome:
    """A command that is over.

    Attributes:
        exit_code: its status, 128 + N if a signal N ended it.
        time_seconds: how long it lived.
        energy_joules: what the driver's monitor counted meanwhile.
        too_dear: whether the driver had it stopped for its cost.
        monitor: the kind of the driver's monitor.
    """

    exit_code: int
    time_seconds: float
    energy_joules: float
    too_dear: bool = False
    monitor: str = ""

    @property
    def end_reason(self) -> v1.EndReason.ValueType:
        """What its trial is ended with, unless it has been decided.

        What SIGTERM, SIGINT or SIGHUP ended was taken away. A kill (137) counts as an error: the kernel, short of
        memory, kills so, but so does anybody else.
        """
        if self.exit_code == 0:
            return v1.END_REASON_COMPLETED
        return v1.END_REASON_PREEMPTED if self.exit_code in _TAKEN_AWAY else v1.END_REASON_ERROR

    def save(self, folder: Path) -> None:
        """Keeps it in the trial's folder, so that a driver's death after the training costs nothing."""
        write_json(folder / MEASURED, asdict(self))


def saved_outcome(folder: Path) -> Outcome | None:
    """What `save` kept; None if the command was not over."""
    found = read_json(folder / MEASURED)
    return None if found is None else Outcome(**found)


@dataclass(frozen=True)
class Result:
    """What a command without a client says of its training.

    Attributes:
        metric: the validation metric at its end; may be NaN.
        epochs: how many it trained.
    """

    metric: float
    epochs: int


class ResultError(ValueError):
    """A command has left no result that can be used; the message says what to write."""


def read_result(folder: Path) -> Result:
    """Reads `result.json`.

    Raises:
        ResultError: if there is none, or not as it should be.
    """
    found = _document(folder / RESULT)
    metric, epochs = found.get("metric"), found.get("epochs")
    if not isinstance(metric, int | float) or isinstance(metric, bool):
        raise _fault(folder, f"has {metric!r} as its metric")
    if not isinstance(epochs, int) or isinstance(epochs, bool) or not 0 < epochs < 2**31:
        raise _fault(folder, f"has {epochs!r} as its epochs")
    return Result(float(metric) if math.isfinite(metric) else math.nan, epochs)


def power_limit_in(folder: Path) -> float | None:
    """The power limit that a trial left word of, in watts: its result, or else its client; None if neither did."""
    for name in (RESULT, POWER_LIMIT):
        limit = (read_json(folder / name) or {}).get("power_limit_watts")
        if isinstance(limit, int | float) and not isinstance(limit, bool) and 0 < limit < math.inf:
            return float(limit)
    return None


def _document(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise _fault(path.parent, "was not written") from None
    except (OSError, ValueError) as error:
        raise _fault(path.parent, f"cannot be read ({error})") from error
    if not isinstance(found, dict):
        raise _fault(path.parent, "is no JSON object")
    return found


def _fault(folder: Path, what: str) -> ResultError:
    return ResultError(
        f"{folder / RESULT} {what}: a command without a client in it must leave there, before it ends with status 0, "
        '{"metric": 0.98, "epochs": 7}'
    )
