"""A driver that is killed repeatedly."""

from __future__ import annotations

import random
import subprocess
from contextlib import suppress

import pytest
from wattwise import Client, v1
from wattwise.presentation.states import UNDECIDED

from tests.client.driver.running import JOB_ID, Runs, result, shell, with_client, write_job
from tests.live_server import LiveServer


@pytest.mark.soak
@pytest.mark.timeout(300)
@pytest.mark.parametrize("command", [with_client("well"), shell("sleep 0.1", result())], ids=["client", "shell"])
@pytest.mark.parametrize("drivers", [1, 2])
def test_killed_at_any_moment(runs: Runs, server: LiveServer, command: list[str], drivers: int) -> None:
    """Drivers are killed at random times: no trial is lost, and none stays dispatched."""
    runs.environment["WATTWISE_SERVER"] = server.address
    job = write_job(runs.folder, command, run={"recurrences": 40, "max_tries": 3})
    moments = random.Random(1)
    while True:
        started = [runs.start(job) for _ in range(drivers)]
        with suppress(subprocess.TimeoutExpired):
            assert started[0].wait(moments.uniform(0.3, 1.5)) == 0
            break
        for driver in started:
            driver.kill()
            driver.communicate()
    for driver in started:
        assert driver.wait(60) == 0
    with Client(server.address) as client:
        trials = {trial.id.trial_number: trial for trial in client.trials(JOB_ID)}
    history = runs.history()
    assert sorted(line["trial"] for line in history) == sorted(trials)
    assert {trial.status for trial in trials.values()} <= {v1.TRIAL_STATUS_DECIDED, *UNDECIDED}
    assert sorted(line["recurrence"] for line in history if line["reached"]) == list(range(1, 41))
    assert len({line["seed"] for line in history}) == len(history)
    for line in history:
        # A command that ended by itself counts, also if its driver was killed at that moment.
        folder = runs.path() / f"trial-{line['trial']:04}"
        assert line["end_reason"] != "preempted" or not (folder / "ended.json").exists()
        reached = trials[line["trial"]].end_reason == v1.END_REASON_TARGET_REACHED
        assert line["reached"] == reached
