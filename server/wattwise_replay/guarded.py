"""A policy whose mistakes are said in a line: which policy, in which file, and what it was asked."""

from __future__ import annotations

import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from wattwise_server.domain import JobSpec, Search
from wattwise_server.policy.base import ArmBelief, Choice, Event, Exhausted, Policy

from wattwise_replay.errors import ReplayError


class Guarded:
    """Asks a policy, and holds its answers against the protocol.

    Args:
        name: the policy's name in the registry, such as "GTS".
        policy: the policy.

    Raises:
        ReplayError: from every method, where the policy fails or answers what the protocol does not allow.
    """

    def __init__(self, name: str, policy: Policy) -> None:
        self._name = name
        self._policy = policy

    @property
    def watches_epochs(self) -> bool:
        """Whether it observes every epoch."""
        with self._blamed("asked whether it watches epochs"):
            return bool(self._policy.watches_epochs)

    def faults(self, spec: JobSpec) -> Sequence[tuple[str, str]]:
        """What is wrong with the fields that only this policy reads."""
        with self._blamed("asked for the job's faults"):
            return list(self._policy.faults(spec))

    def register(self, spec: JobSpec) -> Search:
        """The state of a job without trials."""
        with self._blamed("asked to register the job"):
            return _search(self._policy.register(spec))

    def next(self, spec: JobSpec, search: Search, trial_number: int, rng: np.random.Generator) -> Choice | Exhausted:
        """What the trial of this number should be."""
        with self._blamed(f"asked for trial {trial_number}"):
            choice = self._policy.next(spec, search, trial_number, rng)
            if not isinstance(choice, Choice | Exhausted):
                raise TypeError(f"it answered {choice!r}, which is neither a Choice nor Exhausted")
            if isinstance(choice, Choice) and choice.batch_size not in spec.batch_sizes:
                raise ValueError(f"it chose batch size {choice.batch_size!r}, which the job does not have")
            return choice

    def observe(self, spec: JobSpec, search: Search, event: Event) -> Search:
        """The state after an event."""
        with self._blamed(f"told of {type(event).__name__}, trial {event.trial.number}"):
            return _search(self._policy.observe(spec, search, event))

    def belief(self, spec: JobSpec, search: Search) -> Sequence[ArmBelief]:
        """What it believes about its arms."""
        with self._blamed("asked for its belief"):
            return self._policy.belief(spec, search)

    @contextmanager
    def _blamed(self, when: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            # Whatever it is, it is for the author of the policy to mend.
            what = f"POLICY_{self._name} ({self._place(error)})"
            raise ReplayError(f"{what} failed when it was {when}: {type(error).__name__}: {error}") from error

    def _place(self, error: Exception) -> str:
        """The policy's file, and the last line of it that was run."""
        file = f"{self._name.lower()}.py"
        lines = [at.lineno for at in traceback.extract_tb(error.__traceback__) if Path(at.filename).name == file]
        return f"policy/{file}, line {lines[-1]}" if lines else f"policy/{file}"


def _search(given: object) -> Search:
    if not isinstance(given, Search):
        raise TypeError(f"it answered {given!r}, which is no Search")
    return given
