"""The demo's savings."""

from __future__ import annotations

from wattwise import v1

from examples.digits.recurrence import DemoLaunch
from examples.digits.saving import report, usage_of
from tests.jobs import monitor_of


def launch(recurrence: int, cost: float, *, batch_size: int = 16, kind: str = "rapl") -> DemoLaunch:
    """A trial with this cost."""
    named = v1.TrialId(batch_size=batch_size)
    trial = v1.Trial(id=named, cost=cost, energy_joules=cost, time_seconds=cost / 65, monitor=monitor_of(kind))
    return DemoLaunch(recurrence, trial, v1.Job(), "", target_reached=True)


def test_failed_try_counts_in_its_recurrence() -> None:
    """A recurrence costs the sum of its trials."""
    assert usage_of([launch(1, 10.0), launch(2, 30.0), launch(2, 5.0)]).costs == (10.0, 35.0)


def test_saving_is_against_as_many_runs_of_the_default() -> None:
    """Two recurrences at 30 J against a default of 40 J a run are 60 J where 80 J were needed, a quarter less."""
    text = "\n".join(report([launch(1, 50.0), launch(2, 10.0)], [launch(1, 30.0), launch(2, 50.0)], "a monitor"))
    assert "60 J in total; 2 times the default's mean is 80 J" in text
    assert "25% less cost than with the default" in text
    assert "a run cost 30.0 to 50.0 J" in text


def test_estimates_are_marked() -> None:
    """Every estimated joule is marked, measured ones are not."""
    estimated = [launch(n, 20.0, kind="estimate") for n in range(1, 13)]
    text = "\n".join(report(estimated, estimated[:2], "an estimate"))
    assert text.count(" J") == text.count(" J (estimate)") == 9
    assert "(estimate)" not in "\n".join(report([launch(1, 20.0)], [launch(1, 20.0)], "a monitor"))


def test_higher_cost() -> None:
    """A search that costs more than the default is marked as MORE."""
    text = "\n".join(report([launch(1, 30.0)], [launch(1, 20.0)], "a monitor"))
    assert "50% MORE cost than with the default" in text


def test_last_ten_recurrences() -> None:
    """An expensive first recurrence counts in the total, and not in the last ten."""
    launches = [launch(1, 100.0), *(launch(n, 10.0) for n in range(2, 12))]
    *_, newest, _monitor = report(launches, [launch(1, 20.0)], "a monitor")
    assert "50% less cost than with the default" in newest
