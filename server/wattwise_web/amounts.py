"""Times and states as the page shows them."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from wattwise import v1
from wattwise.presentation import quantities
from wattwise.presentation.quantities import age
from wattwise.presentation.states import UNDECIDED, end_reason, trial_result

if TYPE_CHECKING:
    from google.protobuf.timestamp_pb2 import Timestamp

UNKNOWN = "–"
"""What stands where nothing is known."""


class Moment(NamedTuple):
    """A time.

    Attributes:
        ago: its distance from now, such as "5 min ago" or "in 40 s".
        exact: the time in UTC, for people.
        iso: the time for programs.
    """

    ago: str
    exact: str
    iso: str


def moment(timestamp: Timestamp, *, is_ahead: bool = False) -> Moment:
    """Returns a time of the server, which is at most now even if the server's clock is ahead."""
    elapsed = quantities.seconds_since(timestamp)
    text = f"in {age(-elapsed)}" if is_ahead and elapsed < 0 else f"{age(elapsed)} ago"
    return Moment(text, quantities.moment(timestamp), quantities.exact_moment(timestamp))


class Badge(NamedTuple):
    """A state in a word, with a shape so that it does not need its color.

    Attributes:
        word: the state.
        kind: the style: "run", "idle", "new", "held", "attention", "good", "bad".
    """

    word: str
    kind: str


_STATE_KINDS = {
    "stuck": "attention",
    "warning": "attention",
    "failing": "attention",
    "running": "run",
    "idle": "idle",
    "new": "new",
}


def job_badge(state: str) -> Badge:
    """Returns the state of a job."""
    return Badge(state, _STATE_KINDS.get(state, "held"))


def trial_badge(trial: v1.Trial, *, uncounted: str = "") -> Badge:
    """Returns how a trial ended, in a few words."""
    if trial.status == v1.TRIAL_STATUS_RUNNING:
        return Badge("running", "run")
    word = trial_result(end_reason(trial.end_reason), reached=trial.target_reached, status=trial.status)
    kind = "good" if trial.target_reached else "bad" if trial.status in UNDECIDED else "miss"
    return Badge(f"{word}, {uncounted}" if uncounted else word, kind)
