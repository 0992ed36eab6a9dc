"""`wattwise jobs show` and `wattwise jobs trial`, against the real server."""

from __future__ import annotations

import json

import pytest
from wattwise import v1
from wattwise.rpc.calls import new_id

from tests.client.commands.conftest import Ask, records, row
from tests.jobs import Trainer, monitor_of, power_sample, result
from tests.terminal import on_terminal


@pytest.fixture
def trainer(stub: v1.BatchSizeOptimizerStub) -> Trainer:
    """A job whose first trial is one of the default, with three epochs; its second is another one."""
    trainer = Trainer(stub, policy="knowledge_gradient")
    request = v1.GetNextBatchSizeRequest(
        job_id=trainer.job_id, launch_id=new_id(), labels={"host": "node7", "commit": "abc"}
    )
    trial = stub.GetNextBatchSize(request).trial
    for epoch, metric in ((1, 0.5), (2, 0.7), (3, 0.95)):
        trainer.report(trial, 100.0 * epoch, metric=metric, epoch=epoch, time=2.5 * epoch, monitor=monitor_of("nvml"))
    trainer.run(500)
    return trainer


def test_facts_of_a_trial(ask: Ask, trainer: Trainer) -> None:
    """A trial has its result, why its batch size was chosen, why it ended, what it took, and its labels."""
    shown = ask("jobs", "trial", trainer.job_id, "1")
    facts = {
        name: row(shown, name)[1:] for name in ("trial", "result", "batch size", "epochs", "metric", "cost", "time")
    }
    assert facts == {
        "trial": [f"1 of {trainer.job_id}"],
        "result": ["reached"],
        "batch size": ["16, the default"],
        "epochs": ["3 of at most 10"],
        "metric": ["0.95; the target is at least 0.9"],
        "cost": ["300 J, without a bound"],
        "time": ["7.5 s"],
    }
    assert row(shown, "why batch size 16")[1] == "the default is tried first"
    assert "target" in row(shown, "why it ended")[1]
    assert row(shown, "label host") == ["label host", "node7"]
    assert row(shown, "label commit") == ["label commit", "abc"]


def test_epochs_of_a_trial(ask: Ask, trainer: Trainer) -> None:
    """The epochs stand in a table with the options of tables; for scripts it comes alone."""
    shown = ask("jobs", "trial", trainer.job_id, "1")
    assert row(shown, "2", "energy so far")[:4] == ["2", "0.7", "5.0 s", "200 J"]
    found = records(ask("jobs", "trial", trainer.job_id, "1", "--format", "tsv", "--sort", "metric", "--reverse"))
    assert [(epoch["epoch"], epoch["metric"], epoch["time_so_far_seconds"]) for epoch in found] == [
        ("3", "0.95", "7.5"),
        ("2", "0.7", "5.0"),
        ("1", "0.5", "2.5"),
    ]
    assert ask("jobs", "trial", trainer.job_id, "1", "--no-headers", "--columns", "epoch", "--limit", "1").split() == [
        "1"
    ]


def test_trial_as_json(ask: Ask, trainer: Trainer) -> None:
    """--json is the answer of GetTrial, and the measurements."""
    document = json.loads(ask("jobs", "trial", trainer.job_id, "1", "--json"))
    assert document["trial"]["labels"] == {"host": "node7", "commit": "abc"}
    assert [epoch["metric"] for epoch in document["measurements"]] == [0.5, 0.7, 0.95]


def test_trial_that_runs(ask: Ask, trainer: Trainer) -> None:
    """A running trial has a lease and neither costs nor epochs."""
    number = str(trainer.next().id.trial_number)
    shown = ask("jobs", "trial", trainer.job_id, number)
    assert row(shown, "result") == ["result", "running"]
    assert row(shown, "lease expires")[1].endswith(" UTC")
    assert "cost" not in [line.split()[0] for line in shown.splitlines() if line]
    assert "no epochs" in shown


def test_warnings_and_estimates_of_a_trial(ask: Ask, trainer: Trainer) -> None:
    """Its warnings are there with their kinds, estimates are marked, and so is that it does not count."""
    trial = trainer.next()
    trainer.report(trial, 10, metric=95.0, monitor=monitor_of("estimate"))
    number = str(trial.id.trial_number)
    ask("jobs", "exclude-trial", trainer.job_id, number)
    shown = ask("jobs", "trial", trainer.job_id, number)
    warnings = [line.split(maxsplit=1)[1] for line in shown.splitlines() if line.startswith("warning")]
    assert {warning.split(":")[0] for warning in warnings} >= {"metric out of range", "monitors differ"}
    assert row(shown, "energy") == ["energy", "~10.0 J"]
    assert row(shown, "1", "energy so far")[3] == "~10.0 J"
    assert row(shown, "result") == ["result", "reached, excluded"]


def test_power_profile_of_a_trial(ask: Ask, trainer: Trainer) -> None:
    """What a trial has profiled is a table of power limits, and a computed cost says so."""
    trial = trainer.next()
    samples = [power_sample(225, energy=90, time=2), power_sample(250, energy=100)]
    trainer.stub.ReportPowerProfile(v1.ReportPowerProfileRequest(trial=trial.id, samples=samples))
    measured = result(trial, 100, metric=0.5)
    measured.measurement.computed.CopyFrom(
        v1.ComputedUsage(time_seconds=1.5, energy_joules=80, power_setting=v1.PowerSetting(limit_watts_per_gpu=225))
    )
    trainer.stub.ReportResult(v1.ReportResultRequest(result=measured))
    shown = ask("jobs", "trial", trainer.job_id, str(trial.id.trial_number))
    assert row(shown, "225 W per GPU", "cost of a step")[1:] == ["9.00 J", "0.2 s", "9.00 J"]
    assert "225 W per GPU" in row(shown, "computed")[1]


def test_trial_fits_a_terminal(trainer: Trainer) -> None:
    """On a terminal of 60 columns no line is wider."""
    status, text = on_terminal(("jobs", "trial", trainer.job_id, "1"), 60)
    assert (status, max(map(len, text.splitlines())) <= 60) == (0, True)


def test_one_table_of_batch_sizes(ask: Ask, trainer: Trainer) -> None:
    """A job has one table, with one column of costs; the wide one adds what these rest on."""
    shown, wide = (ask("jobs", "show", trainer.job_id, *options) for options in ((), ("--wide",)))
    for text in (shown, wide):
        assert sum(line.startswith("batch size  ") for line in text.splitlines()) == 1
        assert [line.split()[:2] for line in text.splitlines() if line.split()[1:2] == ["available"]] == [
            [size, "available"] for size in ("8", "16", "32", "64")
        ]
    (heading,) = (line for line in shown.splitlines() if line.startswith("batch size"))
    assert heading.split("  ")[-1] == "expected cost per model"
    assert "cost" not in heading.removesuffix("expected cost per model")
    details = ("observations", "expected cost of a delivery", "std dev of that", "std dev of a trial")
    assert all(name in wide for name in details)
