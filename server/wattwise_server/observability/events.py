"""What can be watched from outside: events once they are durable, and commits. Nobody who watches can disturb."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol, TypeAlias

from wattwise_server.domain import Job, Measurement, PowerSample, Trial
from wattwise_server.observability.logs import say_bug

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class JobRegistered:
    """A job was created."""

    job: Job


@dataclass(frozen=True, slots=True)
class JobDeleted:
    """A job was deleted, with its trials; a TrialEnded of each that was running comes before."""

    job: Job
    stopped_trials: int


@dataclass(frozen=True, slots=True)
class TrialDispatched:
    """A trial was given to a trainer; `why` this batch size."""

    trial: Trial
    why: str


@dataclass(frozen=True, slots=True)
class EpochReported:
    """A trial's newest measurement is `trial.last`; it was `before`. A report that is repeated is no event."""

    job: Job
    trial: Trial
    before: Measurement | None


@dataclass(frozen=True, slots=True)
class TrialEnded:
    """A trial was decided, failed or was lost."""

    trial: Trial


@dataclass(frozen=True, slots=True)
class TrialRevived:
    """A lost trial was heard of again, or one goes on from a checkpoint."""

    trial: Trial


@dataclass(frozen=True, slots=True)
class MonitorsDiffer:
    """A trial is measured by another kind of monitor than trials of its job before it."""

    trial: Trial


@dataclass(frozen=True, slots=True)
class PowerProfiled:
    """A trial reported a profile of so many power limits; the cheapest that is known of its batch size follows."""

    trial: Trial
    limits: int
    cheapest: PowerSample


Tell: TypeAlias = Callable[[], None]
Event: TypeAlias = (
    JobRegistered
    | JobDeleted
    | TrialDispatched
    | EpochReported
    | TrialEnded
    | TrialRevived
    | MonitorsDiffer
    | PowerProfiled
)


class Observer(Protocol):
    """Is told, on the event loop, of what becomes durable; has to be quick.

    Attributes:
        wants_reports: Whether it is to be told of every EpochReported, of which there are by far the most.
    """

    wants_reports: bool

    def opened(self, jobs: int, running_trials: int) -> None:
        """The storage was opened with so much in it."""

    def witness(self, event: Event) -> Tell:
        """Something happens in the call that runs; what is returned is called, elsewhere, once it is durable.

        It never is for what is refused or could not be committed.
        """

    def committed(self, rows: int, seconds: float) -> None:
        """One commit made so many written rows durable, and took so long."""

    def commit_failed(self) -> None:
        """A commit failed and nothing of it was kept."""


class Observers:
    """Several observers as one; what one of them raises is logged and goes no further."""

    def __init__(self, observers: Sequence[Observer] = ()) -> None:
        self._observers = tuple(observers)
        self.wants_reports = any(observer.wants_reports for observer in observers)

    def opened(self, jobs: int, running_trials: int) -> None:
        """The storage was opened."""
        _tell(partial(observer.opened, jobs, running_trials) for observer in self._observers)

    def witness(self, event: Event) -> Tell:
        """Something happens."""
        return partial(_tell, [_witnessed(observer, event) for observer in self._observers])

    def committed(self, rows: int, seconds: float) -> None:
        """A commit is durable."""
        _tell(partial(observer.committed, rows, seconds) for observer in self._observers)

    def commit_failed(self) -> None:
        """A commit failed."""
        _tell(observer.commit_failed for observer in self._observers)


def _witnessed(observer: Observer, event: Event) -> Tell:
    try:
        return observer.witness(event)
    except Exception as error:  # noqa: BLE001 - the call that runs must not fail for it
        return partial(say_bug, log, "observer failed", error)


def _tell(tells: Iterable[Tell]) -> None:
    for tell in tells:
        try:
            tell()
        except Exception as error:  # noqa: BLE001, PERF203 - one that fails must not silence the next
            # The writer calls this between a commit and those who wait for it.
            say_bug(log, "observer failed", error)


UNOBSERVED = Observers()
"""Nobody watches."""
