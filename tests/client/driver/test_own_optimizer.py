"""A script with its own `BatchSizeOptimizer(server, job)`, with and without `wattwise run`."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from wattwise import BatchSizeOptimizer, Client, Credentials, GpuGroup, JobSpec, v1
from wattwise.errors import InvalidArgumentError, JobDiffersError, TrainerSetupError
from wattwise.training.assigned import spec_to_json

from tests.client.driver.running import JOB, JOB_ID, PYTHON, Runs, write_job
from tests.client.training.script import StepMonitor, job_spec
from tests.live_server import LiveServer

SCRIPT = """
import os, sys
from wattwise import BatchSizeOptimizer, EstimateMonitor, JobSpec
job = JobSpec(**{job!r})
with BatchSizeOptimizer({server!r}, job, monitor=EstimateMonitor(watts=50)) as bso:
    for epoch in bso.epochs():
        bso.on_evaluate(0.5 * epoch)
    print("batch size", bso.get_batch_size(), bso.target_reached)
"""


@pytest.fixture
def spec(server: LiveServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> JobSpec:
    """The job of a driver whose variables are in the environment."""
    spec = job_spec(energy_price_per_kwh=0.4, gpu_hour_price=0.06, eta_knob=None)
    with Client(server.address) as client:
        client.register_job(spec)
        client.get_next_batch_size(spec.job_id, launch_id="the-driver's")
    values = {
        "SERVER": server.address,
        "JOB_SPEC": spec_to_json(spec),
        "LAUNCH_ID": "the-driver's",
        "TRIAL_NUMBER": "1",
        "BATCH_SIZE": "16",
        "LOG_DIR": str(tmp_path),
        "MONITOR": "estimate:50",
    }
    for name, value in values.items():
        monkeypatch.setenv(f"WATTWISE_{name}", value)
    return spec


def only_trial(server: LiveServer, job_id: str) -> v1.Trial:
    """The job's trial, which is the only one."""
    with Client(server.address) as client:
        (trial,) = client.trials(job_id)
    return trial


def test_trial_of_the_driver_is_joined(spec: JobSpec, server: LiveServer) -> None:
    """The driver's server and trial take the place of the script's; credentials for another server are not sent."""
    credentials = Credentials(tls=True)
    with BatchSizeOptimizer("localhost:1", spec, credentials=credentials, fallback=8) as bso:
        assert (bso.get_batch_size(), bso.trial.fallback) == (16, False)
        for _ in bso.epochs():
            bso.on_evaluate(0.95)
    trial = only_trial(server, spec.job_id)
    assert (trial.end_reason, trial.id.launch_id) == (v1.END_REASON_TARGET_REACHED, "the-driver's")
    # The monitor is the driver's, unless the script has its own.
    assert trial.newest.energy_joules == pytest.approx(50 * trial.newest.time_seconds)


@pytest.mark.parametrize(
    "changes",
    [
        {"gpu": None},
        {"policy": None},
        {"batch_sizes": (32, 16, 8)},
        {"higher_is_better": True},
        {"trial_lease_seconds": 300.0},
    ],
)
def test_same_job(spec: JobSpec, changes: dict[str, Any]) -> None:
    """A field that a script leaves out, or sets to the server's default, is the same."""
    with BatchSizeOptimizer("localhost:1", replace(spec, **changes), monitor=StepMonitor()) as bso:
        assert bso.get_batch_size() == 16


@pytest.mark.parametrize(
    ("changes", "differing"),
    [
        ({"max_epochs": 7}, {"max_epochs"}),
        ({"max_epochs": None, "target_metric": 0.5}, {"max_epochs", "target_metric"}),
        ({"batch_sizes": (8, 16)}, {"batch_sizes"}),
        ({"beta_knob": 3.0}, {"beta_knob"}),
        ({"gpu_hour_price": 0.5}, {"eta_knob"}),
        ({"seed": 3}, {"seed"}),
        ({"policy": "knowledge_gradient"}, {"policy"}),
        (
            {"gpu": GpuGroup(gpu_model="other", count=1, max_power_watts_per_gpu=1.0), "eta_knob": None},
            {"gpu.gpu_model", "gpu.max_power_watts_per_gpu", "eta_knob"},
        ),
    ],
)
def test_other_configuration(spec: JobSpec, server: LiveServer, changes: dict[str, Any], differing: set[str]) -> None:
    """The same job_id with another configuration is refused before training; the error has the fields that differ."""
    with pytest.raises(JobDiffersError) as refused:
        BatchSizeOptimizer("localhost:1", replace(spec, **changes), monitor=StepMonitor())
    assert {each.field for each in refused.value.violations} == {f"job.{name}" for name in differing}
    assert only_trial(server, spec.job_id).status == v1.TRIAL_STATUS_RUNNING


def test_other_job(spec: JobSpec, server: LiveServer) -> None:
    """A script with another job is refused; the error has both ids."""
    with pytest.raises(TrainerSetupError, match=f"{spec.job_id!r}.*'test-other'"):
        BatchSizeOptimizer(server.address, replace(spec, job_id="test-other"), monitor=StepMonitor())
    with Client(server.address) as client:
        assert [row.job.spec.job_id for row in client.jobs()] == [spec.job_id]


@pytest.mark.usefixtures("spec")
def test_no_job() -> None:
    """What is no JobSpec is refused as without a driver."""
    with pytest.raises(InvalidArgumentError, match="must be a JobSpec"):
        BatchSizeOptimizer("localhost:1", {"job_id": "test"})  # type: ignore[arg-type]


def script_of(runs: Runs, server: str, job_id: str = JOB_ID, **changes: Any) -> list[str]:
    """A script with its own optimizer."""
    path = runs.folder / "train.py"
    path.write_text(SCRIPT.format(server=server, job=JOB | {"job_id": job_id} | changes))
    return [PYTHON, str(path)]


@pytest.mark.thorough
def test_one_script(runs: Runs, server: LiveServer) -> None:
    """The same script trains under a driver with its own server, in a fresh run, and without a driver."""
    command = script_of(runs, server.address)
    job = write_job(runs.folder, command, run={"recurrences": 1})
    for options, job_id in (((), JOB_ID), (("--fresh",), f"{JOB_ID}-2")):
        done = runs.run(job, *options)
        assert (done.returncode, done.stderr) == (0, "")
        (line,) = runs.history(job_id)
        assert (line["end_reason"], line["epochs"], line["measured_by"]) == ("target reached", 2, "command")
    with Client(server.address) as client:
        assert list(client.jobs()) == []
    without = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert without.stdout == "batch size 16 True\n"
    assert only_trial(server, JOB_ID).end_reason == v1.END_REASON_TARGET_REACHED


@pytest.mark.parametrize(
    ("changes", "named"), [({"job_id": "test-another"}, "test-another"), ({"max_epochs": 9}, "max_epochs")]
)
def test_script_of_another_job(runs: Runs, server: LiveServer, changes: dict[str, Any], named: str) -> None:
    """It trains nothing; the driver's error has its message."""
    runs.environment["WATTWISE_SERVER"] = server.address
    done = runs.run(write_job(runs.folder, script_of(runs, server.address, **changes)))
    assert done.returncode == 1
    assert named in done.stderr
    assert only_trial(server, JOB_ID).end_reason == v1.END_REASON_ERROR
    with Client(server.address) as client:
        assert [row.job.spec.job_id for row in client.jobs()] == [JOB_ID]
