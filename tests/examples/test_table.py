"""The demo's table."""

from __future__ import annotations

import io

from rich.console import Console
from wattwise import v1

from examples.digits.recurrence import DemoLaunch
from examples.digits.table import DemoTable
from tests.jobs import monitor_of


def shown(end: v1.EndReason.ValueType, *, target_reached: bool, terminal: bool = False, kind: str = "rapl") -> str:
    """What the table prints for a trial with this end."""
    named = v1.TrialId(trial_number=7)
    monitor = monitor_of(kind)
    trial = v1.Trial(id=named, batch_size=64, end_reason=end, cost=20, monitor=monitor)
    job = v1.Job(spec=v1.JobSpec(job_id="digits-x"), best_known_cost=20, best_known_batch_size=64, monitor=monitor)
    console = Console(file=io.StringIO(), force_terminal=terminal, width=110)
    table = DemoTable(console)
    with table.shown():
        table.add(DemoLaunch(3, trial, job, "[sampled] lowest", target_reached))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_target_over_budget() -> None:
    """Trials over budget are distinguished by whether they reached the target."""
    assert "decision target, over budget" in shown(v1.END_REASON_COST_BOUND, target_reached=True)
    assert "decision cost bound" in shown(v1.END_REASON_COST_BOUND, target_reached=False)


def test_crash_is_called_failed() -> None:
    """A trial that ended without a decision has failed."""
    assert "decision failed" in shown(v1.END_REASON_LOST, target_reached=False)


def test_plain_line() -> None:
    """Without a terminal, a trial is one line without ANSI codes, with the server's reason unchanged."""
    line = shown(v1.END_REASON_TARGET_REACHED, target_reached=True)
    assert line.startswith("recurrence 3, trial 7, batch size 64, ")
    assert line.endswith("reason [sampled] lowest\n")
    assert "\x1b" not in line


def test_estimated_cost_is_marked() -> None:
    """An estimated cost is marked, a measured one is not."""
    end = v1.END_REASON_TARGET_REACHED
    assert "cost ~20.0 J," in shown(end, target_reached=True, kind="estimate")
    assert "cost 20.0 J," in shown(end, target_reached=True, kind="nvml")


def test_heading_of_the_table() -> None:
    """On a terminal, the table's heading has the job's lowest cost, and the line below it the newest reason."""
    text = shown(v1.END_REASON_TARGET_REACHED, target_reached=True, terminal=True)
    assert "digits-x: lowest expected cost of a model 20.0 J with batch size 64" in text
    assert "newest: trial 7, [sampled] lowest" in text
