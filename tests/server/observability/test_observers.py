"""Observers cannot disturb what they observe."""

from __future__ import annotations

from pathlib import Path

import pytest
from wattwise.rpc.calls import new_id
from wattwise_server.clock import steady_clock
from wattwise_server.events import Event
from wattwise_server.observability.observers import Notification, Observers
from wattwise_server.store.open import open_store
from wattwise_server.usecases.training import Training

from tests.server.site import draft


class Faulty:
    """An observer all of whose methods fail.

    Args:
        early: Whether `prepare` fails, and not only the notification.
    """

    wants_reports = True

    def __init__(self, *, early: bool) -> None:
        self._early = early

    def opened(self, jobs: int, running_trials: int) -> None:
        raise OSError(f"{jobs} jobs, {running_trials} trials")

    def counted(self, jobs: int, running_trials: int) -> None:
        raise OSError(f"{jobs} jobs, {running_trials} trials now")

    def prepare(self, event: Event) -> Notification:
        def notify() -> None:
            raise OSError(f"notified of {type(event).__name__}")

        if self._early:
            notify()
        return notify

    def committed(self, rows: int, seconds: float) -> None:
        raise OSError(f"{rows} rows in {seconds} s")

    def commit_failed(self) -> None:
        raise OSError("failed")

    def conflicted(self) -> None:
        raise OSError("conflicted")


async def test_failing_observer_is_logged_and_disturbs_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A job is registered and a trial dispatched although every observer raises."""
    observers, clock = Observers([Faulty(early=True), Faulty(early=False)]), steady_clock()
    async with open_store(f"sqlite:///{tmp_path / 'observed.db'}", clock, observers) as store:
        training = Training(store)
        assert (await training.register(draft("j-1")))[1]
        trial = await training.next_trial("j-1", new_id())
        assert trial.number == 1
        observers.counted(*await store.reads.content())
    messages = [str(record.exc_info[1]) for record in caplog.records if record.exc_info]
    for message in (
        "0 jobs, 0 trials",
        "1 jobs, 1 trials now",
        "notified of JobRegistered",
        "notified of TrialDispatched",
    ):
        assert messages.count(message) == 2
