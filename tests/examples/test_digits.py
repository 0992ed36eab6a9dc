"""The demo, in a short form."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from wattwise import Client

from tests.live_server import LiveServer

pytestmark = pytest.mark.examples
HOUSE = Path(__file__).parents[2]


def run(*arguments: str, timeout: float = 100) -> subprocess.CompletedProcess[str]:
    """Runs a module of the examples."""
    command = [sys.executable, "-m", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False, cwd=HOUSE)


# Four processes import scikit-learn, which is slow on a busy machine, above all without its compiled bytecode.
@pytest.mark.timeout(300)
def test_demo_prints_its_choices_and_what_it_measured(tmp_path: Path) -> None:
    """The default and then another batch size are tried, with reasons, and compared with the measured default."""
    done = run("examples.digits", "--recurrences", "3", "--baseline-runs", "1", "--keep", str(tmp_path), timeout=280)
    assert done.returncode == 0, done.stderr
    assert "\x1b" not in done.stdout
    trials = re.findall(
        r"recurrence (\d+), trial (\d+), batch size (\d+), epochs \d+, cost .*, reason (.+)", done.stdout
    )
    assert trials[0][:3] == ("1", "1", "16")
    assert "the default is tried first" in trials[0][3]
    assert {recurrence for recurrence, *_ in trials} == {"1", "2", "3"}
    assert len({size for _, _, size, _ in trials}) > 1
    # The default policy has none of these.
    assert not re.search("bandit|exploration|pruning", done.stdout)
    assert re.search(r"\d+% (less|MORE) cost than with the default", done.stdout)
    assert "recurrence baseline, trial 1, batch size 16" in done.stdout
    assert "3 times the default's mean is" in done.stdout
    estimated = "not measured" in done.stdout
    assert estimated or "RAPL" in done.stdout
    assert (" J (estimate)" in done.stdout) == estimated
    assert (tmp_path / "wattwise.db").exists()


def test_demo_that_is_stopped_leaves_no_process_behind(tmp_path: Path) -> None:
    """Stopped by a signal, the demo ends its server, which releases its database."""
    command = [sys.executable, "-m", "examples.digits", "--keep", str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=HOUSE) as demo:
        assert demo.stdout is not None
        assert any(line.startswith("recurrence 1,") for line in demo.stdout)
        demo.send_signal(signal.SIGTERM)
        rest = demo.stdout.read()
    assert "stopped by SIGTERM" in rest
    assert demo.returncode == 128 + signal.SIGTERM
    with LiveServer(tmp_path) as successor:
        successor.start()


def test_demo_refuses_an_existing_database(tmp_path: Path) -> None:
    """A folder with a database is refused, and the database is not changed."""
    file = tmp_path / "wattwise.db"
    file.write_bytes(b"another database")
    done = run("examples.digits", "--keep", str(tmp_path))
    assert done.returncode == 2
    assert str(file) in done.stderr
    assert file.read_bytes() == b"another database"


def test_trainer_reports_to_any_server(server: LiveServer) -> None:
    """The demo's trainer works with any server, which has every epoch of its trial."""
    done = run("examples.digits.train", "--server", server.address, "--job-id", "digits-alone", "--default", "128")
    assert done.returncode == 0, done.stderr
    with Client(server.address) as client:
        (trial,) = client.list_trials("digits-alone")
        measured = client.get_trial(trial.id).measurements
    assert trial.converged
    assert [m.current_epoch for m in measured] == list(range(1, trial.last_epoch + 1))
    energy = [m.energy_joules for m in measured]
    assert energy == sorted(energy)
    assert energy[0] > 0


def test_trainer_without_a_server_says_where_it_looked() -> None:
    """A trainer whose server is away ends with an error that names the address."""
    done = run("examples.digits.train", "--server", "127.0.0.1:1", "--timeout", "1")
    assert done.returncode != 0
    assert "127.0.0.1:1" in done.stderr
