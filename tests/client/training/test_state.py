"""The table of a trial's states."""

from __future__ import annotations

import inspect
from itertools import product
from pathlib import Path

import pytest
import yaml
from wattwise.training.state import Event, Link, Progress, TrialState

TABLE = Path(__file__).parents[2] / "scenarios/clients/trial_states.yaml"
EXPECTED = {scenario["state"]: scenario["then"] for scenario in yaml.safe_load(TABLE.read_text())}


def state_in(text: str) -> TrialState:
    """Returns the state that a cell of the table names."""
    link, progress = text.split()
    return TrialState(Link(link), Progress(progress))


def test_table_is_complete() -> None:
    """The table has a cell for every state and every event."""
    assert {state_in(state) for state in EXPECTED} == set(map(TrialState._make, product(Link, Progress)))
    assert all(set(map(Event, row)) == set(Event) for row in EXPECTED.values())


@pytest.mark.parametrize("event", Event)
@pytest.mark.parametrize("progress", Progress)
@pytest.mark.parametrize("link", Link)
def test_event_in_a_state(link: Link, progress: Progress, event: Event) -> None:
    """An event leads from each state to the state in the table that all clients share."""
    expected = state_in(EXPECTED[f"{link.value} {progress.value}"][event.value])
    assert TrialState(link, progress).after(event) == expected


def test_docstring_shows_the_table() -> None:
    """The tables in the docstring say what the code does."""
    documented: dict[tuple[str, Event], str] = {}
    events: list[Event] = []
    for line in inspect.cleandoc(TrialState.__doc__ or "").splitlines():
        if not line.startswith("    "):
            continue
        name, *cells = line.split()
        if name in {"link", "progress"}:
            events = [Event(cell.lower()) for cell in cells]
        else:
            documented |= {(name, event): cell for event, cell in zip(events, cells, strict=True)}
    links = {
        (before.value, event): TrialState(before, Progress.RUNNING).after(event).link
        for before, event in product(Link, Event)
    }
    progress = {
        (before.value, event): TrialState(Link.TRACKED, before).after(event).progress
        for before, event in product(Progress, Event)
    }
    shown = {key: "." if key[0] == after.value else after.value for key, after in (links | progress).items()}
    assert documented == shown
