"""Observers, which are notified of events once they are durable. They cannot disturb what they observe."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Protocol, TypeAlias

from wattwise_server.events import Event
from wattwise_server.observability.logs import log_exception

log = logging.getLogger(__name__)


Notification: TypeAlias = Callable[[], None]


class Observer(Protocol):
    """Is notified, on the event loop, of what becomes durable; its methods must be fast.

    Attributes:
        wants_reports: Whether it wants EpochReported, by far the most frequent event.
    """

    wants_reports: bool

    def opened(self, jobs: int, running_trials: int) -> None:
        """Notes how much the opened storage holds."""

    def counted(self, jobs: int, running_trials: int) -> None:
        """Notes how much the storage holds now, which other servers change too."""

    def prepare(self, event: Event) -> Notification:
        """Returns a function that notes an event of the running call, to be called, outside of it, after the commit.

        It is not called if the call is refused or the commit fails.
        """

    def committed(self, rows: int, seconds: float) -> None:
        """Notes that a commit made this many rows durable in this time."""

    def commit_failed(self) -> None:
        """Notes that a commit failed, or that it is unknown whether it succeeded."""

    def conflicted(self) -> None:
        """Notes that a transaction was not saved because another server had changed its job; its call runs again."""


class Observers:
    """Several observers as one. What one of them raises is logged and does not reach the others or the call."""

    def __init__(self, observers: Sequence[Observer] = ()) -> None:
        self._observers = tuple(observers)
        self.wants_reports = any(observer.wants_reports for observer in observers)

    def opened(self, jobs: int, running_trials: int) -> None:
        """Notifies each."""
        _notify(partial(observer.opened, jobs, running_trials) for observer in self._observers)

    def counted(self, jobs: int, running_trials: int) -> None:
        """Notifies each."""
        _notify(partial(observer.counted, jobs, running_trials) for observer in self._observers)

    def prepare(self, event: Event) -> Notification:
        """Prepares each."""
        return partial(_notify, [_prepared(observer, event) for observer in self._observers])

    def committed(self, rows: int, seconds: float) -> None:
        """Notifies each."""
        _notify(partial(observer.committed, rows, seconds) for observer in self._observers)

    def commit_failed(self) -> None:
        """Notifies each."""
        _notify(observer.commit_failed for observer in self._observers)

    def conflicted(self) -> None:
        """Notifies each."""
        _notify(observer.conflicted for observer in self._observers)


def _prepared(observer: Observer, event: Event) -> Notification:
    try:
        return observer.prepare(event)
    except Exception as error:  # noqa: BLE001 - the running call must not fail with it
        return partial(log_exception, log, "observer failed", error)


def _notify(notifications: Iterable[Notification]) -> None:
    for notify in notifications:
        try:
            notify()
        except Exception as error:  # noqa: BLE001, PERF203 - the next one is still notified
            # The writer calls this between a commit and those who wait for it.
            log_exception(log, "observer failed", error)


NO_OBSERVERS = Observers()
