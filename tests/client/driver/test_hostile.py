"""A run whose server is hostile."""

from __future__ import annotations

import json

import pytest

from tests.client.driver.running import PYTHON, Runs, write_job
from tests.hostile.behaviours import BEHAVIOURS, ESCAPES, changed, setting
from tests.hostile.server import Behaviour, HostileServer
from tests.live_server import LiveServer

WRITE = """
import json, os, sys
folder = os.environ["WATTWISE_LOG_DIR"]
with open(folder + "/seen.json", "w") as file:
    json.dump([sys.argv[1:], os.environ["WATTWISE_REASON"]], file)
with open(folder + "/result.json", "w") as file:
    json.dump(dict(metric=0.95, epochs=2), file)
"""


def test_texts_of_the_server_reach_a_command_without_controls(runs: Runs, server: LiveServer) -> None:
    """The server's reason is a variable of one line that a shell would not evaluate; no terminal gets its controls."""
    text = f"\0$(touch pwned); {ESCAPES} {'x' * 3_000_000}"
    behaviour = changed("a reason of 3 MB", "GetNextBatchSize", setting("trial", reason=text))
    with HostileServer(behaviour, server.address) as hostile:
        job = write_job(runs.folder, [PYTHON, "-c", WRITE, "{batch_size}"], run={"recurrences": 1})
        done = runs.run(job, "--server", hostile.address)
    assert done.returncode == 0, done.stderr
    arguments, reason = json.loads((runs.trial_folders()[0] / "seen.json").read_text())
    assert arguments == ["16"]
    assert reason.startswith("\\x00$(touch pwned); \\x1b[2J")
    assert (reason.isprintable(), len(reason) < 10_000) == (True, True)
    assert "\x1b" not in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("behaviour", "word"),
    [
        (changed("a foreign batch size", "GetNextBatchSize", setting("trial", batch_size=48)), "48"),
        (changed("another job", "RegisterJob", setting("job.spec.target", value=0.1)), "target"),
        (changed("another trial", "EndTrial", setting("trial.id", trial_number=7)), "EndTrial"),
        (changed("no time", "GetNextBatchSize", setting("trial.start_time", seconds=2**62)), "start_time"),
    ],
    ids=str,
)
def test_invalid_answer_ends_the_run(runs: Runs, server: LiveServer, behaviour: Behaviour, word: str) -> None:
    """An answer that cannot be right ends the run with one error that names the call, and nothing trains with it."""
    with HostileServer(behaviour, server.address) as hostile:
        job = write_job(runs.folder, [PYTHON, "-c", WRITE, "{batch_size}"], run={"recurrences": 1})
        done = runs.run(job, "--server", hostile.address)
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1, done.stderr
    assert "invalid answer" in done.stderr
    assert word in done.stderr
    for folder in runs.trial_folders():
        assert json.loads((folder / "seen.json").read_text())[0] == ["16"]


@pytest.mark.parametrize("behaviour", [each for each in BEHAVIOURS if "later release" in each.does], ids=str)
def test_server_of_a_later_release(runs: Runs, server: LiveServer, behaviour: Behaviour) -> None:
    """A run delivers its model on a server whose answers have fields and values that this release does not know."""
    with HostileServer(behaviour, server.address) as later:
        job = write_job(runs.folder, [PYTHON, "-c", WRITE, "{batch_size}"], run={"recurrences": 1})
        done = runs.run(job, "--server", later.address)
    assert done.returncode == 0, done.stderr
    assert "reached" in done.stdout
    assert "Traceback" not in done.stderr
