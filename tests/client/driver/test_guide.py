"""docs/recurring-jobs.md is complete."""

from __future__ import annotations

import re
from dataclasses import fields, replace
from pathlib import Path

from wattwise.driver.history import HistoryRecord
from wattwise.driver.jobfile import RunSection, TrainSection, read
from wattwise.driver.launch_context import LaunchContext, command_line
from wattwise.driver.placeholders import PLACEHOLDERS

from tests.client.driver.running import HOUSE, write_job

GUIDE = (HOUSE / "docs" / "recurring-jobs.md").read_text()


def test_every_key_is_explained() -> None:
    """The guide has every key of [train] and [run], every placeholder and every field of the history."""
    for section in (TrainSection, RunSection):
        for field in fields(section):
            assert re.search(rf"^\|[^|]*`{field.name}`", GUIDE, re.MULTILINE), field.name
    for name in PLACEHOLDERS:
        assert f"`{{{name}}}`" in GUIDE
    for field in fields(HistoryRecord):
        assert f"`{field.name.removesuffix('_number')}`" in GUIDE


def test_every_variable_is_explained(tmp_path: Path) -> None:
    """The guide's table has exactly the variables that a command receives."""
    lengths = {"profile_warmup_iters": 1, "profile_measure_iters": 2, "step_watts": 3.0}
    rates = {"optimizer": "sgd", "default_learning_rate": 0.1}
    file = read(write_job(tmp_path, ["true"], run=lengths, train=rates))
    context = LaunchContext(
        # As in a fresh run.
        spec=replace(file.job, job_id="test-run-2"),
        target_metric="0.9",
        max_epochs="3",
        server="localhost:1",
        monitor="nvml",
        trial_number="1",
        launch_id="x",
        reason="it is the default",
        batch_size=8,
        seed=1,
        recurrence=1,
        try_number=1,
        log_dir=tmp_path,
        server_name="localhost:1",
    )
    names = ("TOKEN", "TOKEN_FILE", "TLS", "TLS_CA", "TLS_CERT", "TLS_KEY", "INSECURE", "SPOOL")
    inherited = {f"WATTWISE_{name}" for name in names}
    rows = "".join(re.findall(r"^\| (`WATTWISE_[^|]*) \|", GUIDE, re.MULTILINE))
    assert set(re.findall(r"WATTWISE_\w+", rows)) == set(command_line(file, context).variables) | inherited
