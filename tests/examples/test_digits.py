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
    assert re.search(r"recurrence baseline, trial \d+, batch size 16", done.stdout)
    assert "Wattwise, all 3 recurrences:" in done.stdout
    assert re.search(r"^digits-nightly: A model costs .* now", done.stdout, re.MULTILINE)
    estimated = "not measured" in done.stdout
    assert estimated or "RAPL" in done.stdout
    assert (" ~" in done.stdout) == estimated
    assert (tmp_path / "wattwise.db").exists()
    assert "trial dispatched job=digits-nightly" in (tmp_path / "server.log").read_text()
    assert (tmp_path / "web.log").exists()
    serve, show, *others = re.findall(r"^  \S+/wattwise (.*)$", done.stdout, re.MULTILINE)
    assert (show, others) == ("jobs show digits-nightly", ["jobs trials digits-nightly", "web"])
    assert serve == f"serve --database sqlite:///{tmp_path}/wattwise.db"
    with LiveServer(tmp_path) as again:
        again.start()
        with Client(again.address) as client:
            assert client.get_job("digits-nightly").job.num_trials > 3


def test_make_keeps_the_demo() -> None:
    """`make demo KEEP=folder` passes the folder on, with any characters; without KEEP nothing is kept."""
    for words, passed in ((("KEEP=a folder",), "--keep 'a folder'"), ((), "--database sqlite \n")):
        done = subprocess.run(["make", "-n", "demo", *words], capture_output=True, text=True, check=True, cwd=HOUSE)
        assert passed in done.stdout


@pytest.mark.timeout(300)
def test_demo_goes_on_when_one_of_two_servers_is_killed() -> None:
    """On PostgreSQL one of two servers is killed during a trial; all trials end, and the demo says what happened."""
    arguments = ("--database", "postgres", "--recurrences", "4", "--baseline-runs", "2")
    done = run("examples.digits", *arguments, timeout=280)
    assert done.returncode == 0, done.stderr
    (both,) = re.findall(r"^Servers: (\S+) and (\S+), on one PostgreSQL", done.stdout, re.MULTILINE)
    (killed,) = re.finditer(
        r"^Killed the server (\S+) while a trial was running.* (\S+) goes on", done.stdout, re.MULTILINE
    )
    assert killed.groups() == both
    before, after = (set(re.findall(r"^recurrence (\d+)", part, re.MULTILINE)) for part in _parts(done.stdout, killed))
    assert (before, after) == ({"1", "2"}, {"3", "4"})
    assert re.search(r"of (\d+) trials none got lost", done.stdout)


def _parts(text: str, at: re.Match[str]) -> tuple[str, str]:
    return text[: at.start()], text[at.end() :]


def test_demo_with_postgresql_that_is_stopped_leaves_no_process_behind() -> None:
    """Stopped by a signal, the demo ends its servers and its PostgreSQL, and deletes its files."""
    command = [sys.executable, "-m", "examples.digits", "--database", "postgres"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=HOUSE) as demo:
        assert demo.stdout is not None
        assert any(line.startswith("recurrence 1,") for line in demo.stdout)
        children = [
            process for process in map(_command, Path("/proc").glob("[0-9]*")) if "wattwise-demo-postgres" in process
        ]
        assert children
        demo.send_signal(signal.SIGTERM)
        assert "stopped by SIGTERM" in demo.stdout.read()
    assert demo.returncode == 128 + signal.SIGTERM
    (folder,) = {found for process in children for found in re.findall(r"-D (\S+)/data", process)}
    assert not Path(folder).exists()
    assert not [process for process in map(_command, Path("/proc").glob("[0-9]*")) if folder in process]


def _command(process: Path) -> str:
    """The command line of a process; empty if it has ended."""
    try:
        return (process / "cmdline").read_text().replace("\0", " ")
    except OSError:
        return ""


def test_demo_refuses_to_keep_a_postgresql(tmp_path: Path) -> None:
    """Nothing is kept of a PostgreSQL, and another database is unknown: both are said before anything starts."""
    kept = run("examples.digits", "--database", "postgres", "--keep", str(tmp_path / "kept"))
    assert (kept.returncode, "--keep" in kept.stderr) == (2, True)
    assert not (tmp_path / "kept").exists()
    other = subprocess.run(["make", "demo", "DATABASE=oracle"], capture_output=True, text=True, check=False, cwd=HOUSE)
    assert other.returncode == 2
    assert "DATABASE=oracle" in other.stderr


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
        (trial,) = client.trials("digits-alone")
        measured = list(client.measurements(trial.id))
    assert trial.converged
    assert [m.epoch for m in measured] == list(range(1, trial.newest.epoch + 1))
    energy = [m.energy_joules for m in measured]
    assert energy == sorted(energy)
    assert energy[0] > 0


def test_trainer_without_a_server_says_where_it_looked() -> None:
    """A trainer whose server is away ends with an error that names the address."""
    done = run("examples.digits.train", "--server", "127.0.0.1:1", "--timeout", "1")
    assert done.returncode != 0
    assert "127.0.0.1:1" in done.stderr
