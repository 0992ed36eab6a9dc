"""The power limit in a run's history."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.client.driver.running import Runs, result, shell, with_client, write_job
from tests.client.monitor.nvml_stub import Machine


@pytest.mark.thorough
def test_limit_that_a_client_set_is_in_the_history(runs: Runs, machine: Machine, library: Path) -> None:
    """The history has the limit that a PowerLimitOptimizer in the command kept, not the 200 W from before."""
    assert machine.file.exists()
    runs.environment["LD_LIBRARY_PATH"] = os.pathsep.join((str(library), os.environ.get("LD_LIBRARY_PATH", "")))
    profile = {"monitor": "nvml", "profile_warmup_iters": 0, "profile_measure_iters": 1, "step_watts": 1000.0}
    done = runs.run(write_job(runs.folder, with_client("power-limit"), run=profile))
    assert done.returncode == 0, done.stderr
    assert [line["limit_watts_per_gpu"] for line in runs.history()] == [250.0, 250.0]


def test_limit_in_a_result(runs: Runs) -> None:
    """A command may name its limit in result.json; an invalid or missing one is null."""
    named = 'echo \'{{"metric": 0.95, "epochs": 2, "limit_watts_per_gpu": %s}}\' > {log_dir}/result.json'
    job = write_job(runs.folder, shell(f"if [ {{recurrence}} = 1 ]; then {named % 175}; else {named % -1}; fi"))
    assert runs.run(job).returncode == 0
    one = write_job(runs.folder, shell(result()), run={"recurrences": 3}, name="three.toml")
    assert runs.run(one).returncode == 0
    assert [line["limit_watts_per_gpu"] for line in runs.history()] == [175.0, None, None]
