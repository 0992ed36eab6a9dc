"""The states of a trial by epoch, in a folder with the checkpoints of a trainer that have no place for them."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, NamedTuple

from wattwise.errors import TrainerSetupError, log
from wattwise.files import integer_of, is_number, read_json, replacing

_FILE = "wattwise.json"
_KEPT = 100
"""The number of epochs whose states are kept."""


class EpochState(NamedTuple):
    """The state with which a trial continues at the beginning of an epoch.

    Attributes:
        trial: the state of the trial, from `CallbackTrial.state`.
        steps: the trainer's steps since the last report.
        interval: the steps between two reports; None if unknown.
        total: all steps of the trainer.
        metric: that of the evaluation after these steps, which was not reported yet; None if there is none.
    """

    trial: dict[str, Any]
    steps: int
    interval: int | None
    total: int
    metric: float | None


class EpochStates:
    """The states of the last epochs of a trial, in one file.

    A trainer saves its model before or after the state, and may be killed in between: it may continue from an earlier
    epoch than that of the newest state.

    Args:
        folder: the folder; it is created if it is missing.

    Raises:
        TrainerSetupError: if the folder cannot be used, or has a file that is not one of states.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        if "://" in os.fspath(folder):
            raise TrainerSetupError(f"checkpoint={os.fspath(folder)!r} is not a local folder: the state needs one")
        self.path = Path(folder) / _FILE
        self._warned = False
        try:
            self._by_epoch = _states_in(self.path)
        except FileNotFoundError:
            self._by_epoch = {}
        except ValueError as error:
            raise TrainerSetupError(
                f"{self.path} is not the state of a trial ({error}): remove it, with the model's checkpoint, to train "
                "from the start"
            ) from None

    @property
    def newest(self) -> EpochState | None:
        """The state of the last epoch; None if there is none."""
        return self._by_epoch[max(self._by_epoch)] if self._by_epoch else None

    @property
    def epochs(self) -> list[int]:
        """The epochs that have a state, from 0."""
        return sorted(self._by_epoch)

    def at(self, epoch: int) -> EpochState | None:
        """Returns the state at the beginning of an epoch; None if it has none."""
        return self._by_epoch.get(epoch)

    def save(self, epoch: int, state: EpochState) -> None:
        """Saves the state at the beginning of an epoch, at once or not at all; those of later epochs are dropped."""
        earlier = [each for each in self.epochs if each < epoch][1 - _KEPT :]
        self._by_epoch = {**{each: self._by_epoch[each] for each in earlier}, epoch: state}
        text = json.dumps({each: kept._asdict() for each, kept in self._by_epoch.items()})
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with replacing(self.path) as file:
                file.write(text.encode())
        except OSError as error:
            if not self._warned:
                log.warning(
                    "the trial's state cannot be saved, so that a resumed training cannot continue it: %s", error
                )
            self._warned = True
        else:
            self._warned = False

    def remove(self) -> None:
        """Removes the file: the trial is over."""
        self._by_epoch = {}
        try:
            self.path.unlink(missing_ok=True)
        except OSError as error:
            log.warning("%s cannot be removed (%s): its trial is over", self.path, error)


def _states_in(path: Path) -> dict[int, EpochState]:
    """Returns the states that `save` wrote; their trials are checked where they are resumed.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if there are none in it.
    """
    document = read_json(path)
    if not isinstance(document, dict):
        raise ValueError("it is not a JSON object")  # noqa: TRY004 - of a file, not of a caller
    return {int(epoch): _state_in(state) for epoch, state in document.items()}


def _state_in(document: object) -> EpochState:
    if not isinstance(document, dict):
        raise ValueError(f"it has {document!r:.80} in place of the state of an epoch")  # noqa: TRY004 - as above
    trial, metric = document.get("trial"), document.get("metric")
    steps, interval, total = (integer_of(document.get(name)) for name in ("steps", "interval", "total"))
    whole = interval is not None or document.get("interval") is None
    if not (isinstance(trial, dict) and steps is not None and whole and total is not None):
        raise ValueError(f"it has {document!r:.200} in place of the state of an epoch")
    return EpochState(trial, steps, interval, total, float(metric) if is_number(metric) else None)
