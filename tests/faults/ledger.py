"""The ledger: what trainers sent and the answers that they got, to compare with a server's file."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

from wattwise import v1


@dataclass
class SentReport:
    """An epoch as it was sent, and the first response."""

    time: float
    energy: float
    metric: float
    tries: int = 0
    decision: v1.Decision | None = None


@dataclass
class TrialBook:
    """One trial, written by the one worker that runs it."""

    trial: v1.Trial
    reports: dict[int, SentReport] = field(default_factory=dict)
    heartbeat: v1.Decision | None = None
    ending: v1.EndReason.ValueType | None = None
    ended: v1.Trial | None = None
    imported: bool = False

    @property
    def stopped(self) -> bool:
        """Whether a decision has stopped its trainer."""
        decisions = [self.heartbeat, *(report.decision for report in self.reports.values())]
        return any(decision is not None and decision.stop_train for decision in decisions)


@dataclass
class JobBook:
    """One job; any worker may write here.

    Attributes:
        mixed: whether trials are resumed and imported, too, and limits profiled; otherwise the job can be replayed.
        requests: the trials by the ids of their requests; None is not acknowledged.
        imports: what was sent of the imported ones.
        profiles: for each batch size the energy per step of the cheapest sample that was sent, and of the cheapest
            that was acknowledged.
    """

    spec: v1.JobSpec
    mixed: bool = False
    requests: dict[str, TrialBook | None] = field(default_factory=dict)
    imports: dict[str, dict[int, SentReport]] = field(default_factory=dict)
    profiles: dict[int, tuple[float, float]] = field(default_factory=dict)
    registered: bool = False
    delete_requested: bool = False
    deleted: bool = False

    @property
    def trials(self) -> Iterator[TrialBook]:
        """The acknowledged trials."""
        return (book for book in list(self.requests.values()) if book is not None)


class Ledger:
    """All jobs of one run, and a count of acknowledgements."""

    def __init__(self) -> None:
        self.jobs: dict[str, JobBook] = {}
        self._acknowledged = 0
        self._more = threading.Condition()

    def acknowledge(self) -> None:
        """Counts one response."""
        with self._more:
            self._acknowledged += 1
            self._more.notify_all()

    @property
    def acknowledged(self) -> int:
        """Responses so far."""
        return self._acknowledged

    def wait_for(self, further: int, seconds: float = 60.0) -> None:
        """Returns after that many more responses."""
        wanted = self._acknowledged + further
        with self._more:
            assert self._more.wait_for(lambda: self._acknowledged >= wanted, seconds), "the trainers make no progress"
