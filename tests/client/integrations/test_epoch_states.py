"""The file with the states of a trial's epochs."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from wattwise.errors import TrainerSetupError
from wattwise.integrations.epoch_states import EpochState, EpochStates

from tests.client.test_files import SPECIAL

STATE = EpochState({"version": 1}, 3, None, 7, 0.5)


def test_states_are_read_as_they_were_written(tmp_path: Path) -> None:
    """The newest state comes back as it was; a metric may be NaN."""
    states = EpochStates(tmp_path)
    states.save(0, STATE)
    states.save(1, STATE._replace(interval=2, metric=None))
    assert EpochStates(tmp_path).at(0) == STATE
    assert EpochStates(tmp_path).newest == STATE._replace(interval=2, metric=None)
    states.save(2, STATE._replace(metric=float("nan")))
    newest = EpochStates(tmp_path).newest
    assert newest is not None
    assert newest.metric != newest.metric


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        "[" * 100_000,
        '{"0": []}',
        '{"x": {}}',
        '{"0": {"trial": 1, "steps": 1, "interval": null, "total": 1, "metric": null}}',
        '{"0": {"trial": {}, "steps": "1", "interval": null, "total": 1, "metric": null}}',
        '{"0": {"trial": {}, "steps": 1, "interval": "2", "total": 1, "metric": null}}',
        '{"0": {"trial": {}, "steps": 1, "interval": null, "total": 1e999, "metric": null}}',
        json.dumps({"0": STATE._asdict() | {"trial": "\udcff"}}),
    ],
)
def test_file_that_is_not_one_of_states(tmp_path: Path, content: str) -> None:
    """The file is named, and what to do."""
    (tmp_path / "wattwise.json").write_text(content)
    with pytest.raises(TrainerSetupError, match=r"wattwise\.json"):
        EpochStates(tmp_path)


@pytest.mark.parametrize("kind", SPECIAL)
def test_what_is_no_file(tmp_path: Path, kind: str) -> None:
    """A training does not wait for a pipe, and does not write through its draft."""
    SPECIAL[kind](tmp_path / "wattwise.json")
    with pytest.raises(TrainerSetupError, match=r"wattwise\.json"):
        EpochStates(tmp_path)


def test_draft_that_is_a_pipe(tmp_path: Path) -> None:
    """The state is saved all the same."""
    os.mkfifo(tmp_path / "wattwise.json.new")
    EpochStates(tmp_path).save(0, STATE)
    assert EpochStates(tmp_path).newest == STATE
