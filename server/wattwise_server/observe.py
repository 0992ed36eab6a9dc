"""What can be watched from outside: events once they are durable, and commits. Nobody who watches can disturb."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from wattwise_server.domain import Job, Trial

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class JobRegistered:
    """A job was created."""

    job: Job


@dataclass(frozen=True, slots=True)
class JobDeleted:
    """A job was deleted, with its trials, of which so many were running; a TrialEnded of each comes before."""

    job: Job
    stopped_trials: int


@dataclass(frozen=True, slots=True)
class TrialDispatched:
    """A trial was given to a trainer."""

    trial: Trial
    why: str


@dataclass(frozen=True, slots=True)
class TrialEnded:
    """A trial was decided, failed or was lost; `job` as it was before."""

    job: Job
    trial: Trial


@dataclass(frozen=True, slots=True)
class TrialRevived:
    """A lost trial was heard of again."""

    job: Job
    trial: Trial


Event = JobRegistered | JobDeleted | TrialDispatched | TrialEnded | TrialRevived


class Observer(Protocol):
    """Is told, on the event loop, of what has become durable; has to be quick and to keep its errors to itself."""

    def opened(self, jobs: int, running_trials: int) -> None:
        """The store was opened with so much in it."""

    def happened(self, event: Event) -> None:
        """An event is durable. What is refused, or could not be committed, never comes here."""

    def committed(self, transactions: int, rows: int, seconds: float) -> None:
        """One commit made the changes of several transactions durable."""

    def commit_failed(self) -> None:
        """A transaction could not be committed; nothing of it was kept."""


class Observers:
    """Several observers as one; what one of them raises is logged and goes no further."""

    def __init__(self, observers: Sequence[Observer] = ()) -> None:
        self._observers = tuple(observers)

    def opened(self, jobs: int, running_trials: int) -> None:
        """The store was opened with so much in it."""
        self._tell(lambda observer: observer.opened(jobs, running_trials))

    def happened(self, event: Event) -> None:
        """An event is durable."""
        self._tell(lambda observer: observer.happened(event))

    def committed(self, transactions: int, rows: int, seconds: float) -> None:
        """One commit made the changes of several transactions durable."""
        self._tell(lambda observer: observer.committed(transactions, rows, seconds))

    def commit_failed(self) -> None:
        """A transaction could not be committed."""
        self._tell(lambda observer: observer.commit_failed())

    def _tell(self, what: Callable[[Observer], None]) -> None:
        for observer in self._observers:
            try:
                what(observer)
            except Exception:
                # The writer calls this between a commit and those who wait for it.
                log.exception("an observer failed")


UNOBSERVED = Observers()
"""Nobody watches."""
