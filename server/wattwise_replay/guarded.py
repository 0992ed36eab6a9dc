"""Reports a policy's errors in one line: the policy, its file and line, and the call that failed."""

from __future__ import annotations

import math
import reprlib
import sys
import traceback
from collections.abc import Callable, Sequence
from numbers import Real
from pathlib import Path
from typing import TypeVar

import numpy as np
from wattwise.rules import ResolvedJob
from wattwise_server.domain import DetectedChange, Search
from wattwise_server.events import SearchEvent, SearchEventOfBatchSize
from wattwise_server.policy.base import ArmBelief, Choice, Exhausted, Policy, Prior

from wattwise_replay.errors import ReplayError

T = TypeVar("T")

_LARGEST = sys.float_info.max
_BELIEFS = {
    "mean": (False, -_LARGEST, _LARGEST),
    "precision": (False, 0.0, math.inf),
    "reward_precision": (False, 0.0, math.inf),
    "observations": (False, 0, _LARGEST),
    "expected_cost": (True, 0.0, _LARGEST),
    "deviation": (True, 0.0, _LARGEST),
    "failure_rate": (True, 0.0, 1.0),
}
"""Whether each number of a belief may be None, and its limits."""


class Guarded:
    """Calls a policy and checks its answers against the protocol.

    Args:
        name: The policy's name in the registry, such as "gts".
        policy: The policy.

    Raises:
        ReplayError: from every method, if the policy fails or returns something invalid.
    """

    def __init__(self, name: str, policy: Policy) -> None:
        self._name = name
        self._policy = policy

    @property
    def watches_epochs(self) -> bool:
        """Whether it observes every epoch."""
        return self._called(lambda: "watches_epochs", lambda: bool(self._policy.watches_epochs))

    def register(self, spec: ResolvedJob, priors: Sequence[Prior]) -> Search:
        """Returns the state of a job without trials."""
        return self._called(lambda: "register", lambda: _search(self._policy.register(spec, priors)))

    def next(
        self, spec: ResolvedJob, search: Search, trial_number: int, rng: np.random.Generator
    ) -> Choice | Exhausted:
        """Returns the choice for the trial of this number."""
        return self._called(
            lambda: f"next for trial {trial_number}",
            lambda: _choice(spec, self._policy.next(spec, search, trial_number, rng)),
        )

    def observe(self, spec: ResolvedJob, search: Search, event: SearchEvent) -> Search:
        """Returns the state after an event."""
        return self._called(
            lambda: f"observe for {_named(event)}",
            lambda: _search(self._policy.observe(spec, search, event)),
        )

    def bound(self, spec: ResolvedJob, search: Search, batch_size: int) -> float | None:
        """Returns the cost at which a running trial of this batch size is stopped."""
        return self._called(
            lambda: f"bound for batch size {batch_size}", lambda: _bound(self._policy.bound(spec, search, batch_size))
        )

    def belief(self, spec: ResolvedJob, search: Search) -> Sequence[ArmBelief]:
        """Returns its belief about every batch size."""
        return self._called(lambda: "belief", lambda: _belief(spec, self._policy.belief(spec, search)))

    def changes(self, search: Search) -> Sequence[DetectedChange]:
        """Returns the newest change of each quantity."""
        return self._called(lambda: "changes", lambda: _changes(self._policy.changes(search)))

    def _called(self, call: Callable[[], str], answer: Callable[[], T]) -> T:
        # A context manager would take as long as a policy does.
        try:
            return answer()
        except Exception as error:
            # Any error here is the policy author's to fix.
            policy = f"{self._name} ({self._place(error)})"
            raise ReplayError(f"{policy} failed in {call()}: {type(error).__name__}: {error}") from error

    def _place(self, error: Exception) -> str:
        """Returns the policy's file, a module or one of a package, and the last line of it that ran."""
        name, place = self._name.lower(), f"policy/{self._name.lower()}.py"
        for frame in traceback.extract_tb(error.__traceback__):
            path = Path(frame.filename)
            if path.stem == name:
                place = f"policy/{path.name}, line {frame.lineno}"
            elif path.parent.name == name:
                place = f"policy/{name}/{path.name}, line {frame.lineno}"
        return place


def _choice(spec: ResolvedJob, choice: object) -> Choice | Exhausted:
    if not isinstance(choice, Choice | Exhausted):
        raise TypeError(f"returned {_shown(choice)}, which is neither a Choice nor Exhausted")
    if isinstance(choice, Choice) and choice.batch_size not in spec.batch_sizes:
        raise ValueError(f"chose batch size {choice.batch_size!r}, which the job does not have")
    return choice


def _search(state: object) -> Search:
    if not isinstance(state, Search):
        raise TypeError(f"returned {_shown(state)}, which is not a Search")
    return state


def _bound(bound: object) -> float | None:
    if bound is not None and (not isinstance(bound, Real) or math.isnan(bound)):
        raise TypeError(f"returned {_shown(bound)}, which is neither a cost nor None")
    return None if bound is None else float(bound)


def _belief(spec: ResolvedJob, beliefs: object) -> Sequence[ArmBelief]:
    if not isinstance(beliefs, Sequence) or not all(isinstance(each, ArmBelief) for each in beliefs):
        raise TypeError(f"returned {_shown(beliefs)}, which is not a sequence of ArmBelief")
    sizes = [each.batch_size for each in beliefs]
    if sizes != list(spec.batch_sizes):
        job = ", ".join(map(str, spec.batch_sizes))
        raise ValueError(f"returned batch sizes {_shown(sizes)}; return one ArmBelief for each of {job}, in this order")
    for each in beliefs:
        for name, (is_optional, least, most) in _BELIEFS.items():
            value = getattr(each, name)
            if is_optional and value is None:
                continue
            if not isinstance(value, Real) or not least <= float(value) <= most:
                raise ValueError(f"returned {name} {_shown(value)} for batch size {each.batch_size}")
    return beliefs


def _changes(changes: object) -> Sequence[DetectedChange]:
    if not isinstance(changes, Sequence) or not all(isinstance(each, DetectedChange) for each in changes):
        raise TypeError(f"returned {_shown(changes)}, which is not a sequence of DetectedChange")
    return changes


def _shown(value: object) -> str:
    """Returns a value in one short line."""
    return " ".join(reprlib.repr(value).split())


def _named(event: SearchEvent) -> str:
    """Returns an event's kind, and what it is about."""
    kind = type(event).__name__
    if isinstance(event, SearchEventOfBatchSize):
        return f"{kind} of batch size {event.batch_size}"
    return f"{kind} of trial {event.trial.number}"
