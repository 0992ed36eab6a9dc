"""Drivers whose disk is full."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from wattwise import v1

from tests.client.driver.running import Runs, result, shell, write_job
from tests.client.driver.test_run import trials
from tests.faults.disks import fill, small_disk
from tests.live_server import LiveServer

FILL = "dd if=/dev/zero of={log_dir}/filler bs=1k 2> /dev/null"


@pytest.fixture
def on_small_disk(tmp_path: Path, server: LiveServer) -> Iterator[Runs]:
    """Runs whose folder is on a disk of a megabyte, and whose server is not."""
    folder = tmp_path / "disk"
    folder.mkdir()
    with small_disk(folder, "1m"):
        runs = Runs(folder, {"WATTWISE_SERVER": server.address})
        try:
            yield runs
        finally:
            runs.close()


def test_command_that_fills_the_disk(on_small_disk: Runs, server: LiveServer) -> None:
    """Its result counts; the driver says what to do, and goes on from there once there is space."""
    runs = on_small_disk
    # Longer than the time after which the driver first saves what it measured.
    job = write_job(runs.folder, shell(result(), FILL, "sleep 1.5"), run={"recurrences": 1})
    done = runs.run(job)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert all(part in done.stderr for part in (str(runs.path() / "history.jsonl"), "No space left", "run the same"))
    assert [trial.end_reason for trial in trials(server)] == [v1.END_REASON_TARGET_REACHED]
    (runs.trial_folders()[0] / "filler").unlink()
    assert runs.run(job).returncode == 0
    assert [(line["trial"], line["reached"]) for line in runs.history()] == [(1, True)]
    assert len(trials(server)) == 1


def test_full_disk_at_the_start(on_small_disk: Runs, server: LiveServer) -> None:
    """Nothing begins on a full disk, and nothing is lost."""
    runs = on_small_disk
    job = write_job(runs.folder, shell(result()), run={"recurrences": 1})
    filler = fill(runs.folder)
    done = runs.run(job)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "No space left" in done.stderr
    filler.unlink()
    assert runs.run(job).returncode == 0
    assert [trial.end_reason for trial in trials(server)] == [v1.END_REASON_TARGET_REACHED]
