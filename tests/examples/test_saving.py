"""The demo's savings."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from dataclasses import dataclass

from wattwise import Client, v1

from examples.digits.job import TARGET_MISSED
from examples.digits.recurrence import DemoLaunch, RecurringJob
from examples.digits.saving import report, usage_of
from tests.jobs import Trainer, monitor_of
from tests.live_server import LiveServer


def launch(recurrence: int, cost: float, *, batch_size: int = 16, kind: str = "rapl") -> DemoLaunch:
    """A trial with this cost."""
    newest = v1.Measurement(energy_joules=cost, time_seconds=cost / 65)
    trial = v1.Trial(batch_size=batch_size, cost=cost, newest=newest, monitor=monitor_of(kind))
    return DemoLaunch(recurrence, trial, v1.Job(), "", target_reached=True)


def test_failed_try_counts_in_its_recurrence() -> None:
    """A recurrence costs the sum of its trials."""
    assert usage_of([launch(1, 10.0), launch(2, 30.0), launch(2, 5.0)]).costs == (10.0, 35.0)


def test_costs_stand_side_by_side() -> None:
    """A recurrence and a run of the default have their mean costs, without a claim that these would not bear out."""
    text = "\n".join(report([launch(1, 50.0), launch(2, 10.0)], [launch(1, 30.0), launch(2, 50.0)], "a monitor"))
    assert "cost 30.0 J, energy 30.0 J, time 0.46 s per recurrence; 60 J in total" in text
    assert "cost 40.0 J, energy 40.0 J, time 0.62 s per recurrence; a run cost 30.0 to 50.0 J" in text
    assert "%" not in text


def test_estimates_are_marked() -> None:
    """Every estimated joule is marked, measured ones are not."""
    estimated = [launch(n, 20.0, kind="estimate") for n in range(1, 13)]
    text = "\n".join(report(estimated, estimated[:2], "an estimate"))
    assert text.count("20.0") + text.count("240 J") == text.count("~") == 9
    assert "~" not in "\n".join(report([launch(1, 20.0)], [launch(1, 20.0)], "a monitor"))


def test_last_ten_recurrences() -> None:
    """An expensive first recurrence counts in the total, and not in the last ten."""
    launches = [launch(1, 100.0), *(launch(n, 10.0) for n in range(2, 12))]
    *_, newest, _monitor = report(launches, [launch(1, 20.0)], "a monitor")
    assert newest.startswith("  cost 10.0 J, ")


@dataclass(frozen=True)
class _ThirdHits(RecurringJob):
    """A job whose trainer is in this process: its first two trials miss the target."""

    trainer: Trainer | None = None

    def _launch(self, seed: int, halfway: Callable[[], None] | None) -> subprocess.CompletedProcess[str]:
        del halfway
        assert self.trainer is not None
        hits = seed % 20 == 2
        self.trainer.run(10.0, converges=hits)
        return subprocess.CompletedProcess([], 0 if hits else TARGET_MISSED, "", "")


def test_baseline_is_the_default_alone(server: LiveServer) -> None:
    """All trials of a run of the default have its batch size, also those after one that missed the target."""
    trainer = Trainer(server.trainer, policy="knowledge_gradient")
    for _ in range(4):
        trainer.run(1.0)
    with Client(server.address) as client:
        job = _ThirdHits(client, server.address, trainer.job_id, trainer=trainer)
        found = [launch.trial.batch_size for launch in job.recur(1, 0, baseline=True)]
        assert found == [trainer.spec.default_batch_size] * 3
        assert {launch.trial.batch_size for launch in job.recur(2, 0)} != {trainer.spec.default_batch_size}
