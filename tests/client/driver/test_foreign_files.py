"""What a command, or another program, leaves in the folders of a run neither hangs nor crashes a driver."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from wattwise import v1
from wattwise.driver import evaluations, files, supervisor
from wattwise.driver.history import History, HistoryError
from wattwise.driver.outcome import (
    RUNNING,
    LaunchOutcome,
    ResultError,
    ignored_in,
    power_limit_in,
    read_result,
    saved_outcome,
    shown_line,
)
from wattwise.driver.output import Board
from wattwise.driver.own_server import OwnServer
from wattwise.monitor import MonitorKinds
from wattwise.training.client_file import ClientFile

from tests.client.driver.running import PYTHON, Runs, result, shell, write_job
from tests.client.driver.test_evaluations import Output
from tests.client.driver.test_history import RECORD
from tests.client.driver.test_run import trials
from tests.client.test_files import SPECIAL
from tests.live_server import LiveServer

GOOD = '{"metric": 0.95, "epochs": 2}'
LINKS = {"pipe": "os.mkfifo(path)", "link to a device": "os.symlink('/dev/zero', path)", "folder": "os.mkdir(path)"}


@pytest.fixture
def runs(runs: Runs, server: LiveServer) -> Runs:
    """Runs that use the server."""
    runs.environment["WATTWISE_SERVER"] = server.address
    return runs


def job_of(runs: Runs, program: str) -> Path:
    """A job file of one recurrence whose command is a program in Python; `folder` is the trial's."""
    script = runs.folder / "train.py"
    script.write_text(f"import os\nfolder = os.environ['WATTWISE_LOG_DIR']\n{program}\n")
    return write_job(runs.folder, [PYTHON, str(script)], run={"recurrences": 1, "max_tries": 1})


@pytest.mark.parametrize(
    "content", [GOOD, '{"metric": 0.95, "epochs": 2.0}', f"\ufeff{GOOD}", GOOD.replace("2", "2e0")]
)
def test_result_with_an_integer(tmp_path: Path, content: str) -> None:
    """JSON has one kind of number: 2.0 is an integer."""
    (tmp_path / "result.json").write_text(content)
    assert read_result(tmp_path) == (0.95, 2)


@pytest.mark.parametrize(
    "content",
    [
        "[" * 200_000,
        '{"metric":' * 100_000,
        "[1, 2]",
        "",
        '{"metric": 0.95, "epochs": 2',
        '{"metric": "\\ud800", "epochs": 2}',
        '{"metric": true, "epochs": 2}',
        '{"metric": 0.95, "epochs": 2.5}',
        '{"metric": 0.95, "epochs": 1e999}',
        '{"metric": 0.95, "epochs": NaN}',
        '{"metric": 0.95, "epochs": "2"}',
        f'{{"metric": 0.95, "epochs": 1{"0" * 5000}}}',
        '{"metric": 0.95, "metric": 0.5, "epochs": 2}',
    ],
)
def test_result_that_is_none(tmp_path: Path, content: str) -> None:
    """The fault is named with the file, and with what to write."""
    (tmp_path / "result.json").write_text(content)
    with pytest.raises(ResultError) as refused:
        read_result(tmp_path)
    assert str(tmp_path / "result.json") in str(refused.value)
    assert '{"metric": 0.98, "epochs": 7}' in str(refused.value)
    assert len(str(refused.value)) < 1000


@pytest.mark.parametrize("epochs", ["0", "1e15", "2147483648", "2.5"])
def test_epochs_out_of_range(tmp_path: Path, epochs: str) -> None:
    """A number of epochs that a report cannot have is refused with the range."""
    (tmp_path / "result.json").write_text(f'{{"metric": 0.95, "epochs": {epochs}}}')
    with pytest.raises(ResultError, match="which is not an integer from 1 to 2,147,483,647"):
        read_result(tmp_path)


@pytest.mark.parametrize("metric", ["1e999", f"1{'0' * 400}", f"-1{'0' * 5000}"])
def test_metric_that_no_float_holds(runs: Runs, server: LiveServer, metric: str) -> None:
    """A metric beyond all numbers has diverged, like NaN."""
    job = job_of(runs, f"open(folder + '/result.json', 'w').write('{GOOD}'.replace('0.95', {metric!r}))")
    done = runs.run(job)
    assert (done.returncode, "Traceback" in done.stderr) == (1, False)
    (trial,) = trials(server)
    assert trial.newest.metric != trial.newest.metric
    assert trial.end_reason == v1.END_REASON_STOPPED_EARLY


@pytest.mark.parametrize("kind", SPECIAL)
def test_result_that_is_no_file(tmp_path: Path, kind: str) -> None:
    """A pipe or a device is not read."""
    SPECIAL[kind](tmp_path / "result.json")
    with pytest.raises(ResultError):
        read_result(tmp_path)


REPLACED = [
    *((name, "pipe") for name in ("result.json", "client.json", "output.log", "measuring.json", "measured.json.new")),
    ("output.log", "link to a device"),
    ("measured.json", "folder"),
]


@pytest.mark.parametrize(("name", "kind"), REPLACED)
def test_files_that_a_command_replaces(runs: Runs, server: LiveServer, name: str, kind: str) -> None:
    """A run goes on, whatever has the name of one of its files; without a result it says so."""
    program = f"""
path = folder + "/{name}"
if os.path.lexists(path):
    os.remove(path)
{LINKS[kind]}
"""
    program += "" if name == "result.json" else f"open(folder + '/result.json', 'w').write('{GOOD}')"
    done = runs.run(job_of(runs, program))
    assert "Traceback" not in done.stderr
    if name == "result.json":
        assert (done.returncode, name in done.stderr) == (1, True)
    else:
        assert (done.returncode, done.stderr) == (0, "")
        assert [trial.newest.epoch for trial in trials(server)] == [2]
    said = [line for line in done.stdout.splitlines() if name in line]
    assert len(said) == (name == "client.json")


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("client.json", "[" * 200_000),
        ("client.json", "[1]"),
        ("client.json", '{"joined": [1]}'),
        ("client.json", '{"limit_watts_per_gpu": {}}'),
        ("client.json", " " * 100_000),
        ("result.json", GOOD.replace("}", ', "limit_watts_per_gpu": "x"}')),
        ("result.json", GOOD.replace("}", ', "limit_watts_per_gpu": NaN}')),
        ("result.json", GOOD.replace("}", f', "limit_watts_per_gpu": 1{"0" * 400}}}')),
    ],
)
def test_what_is_not_used_is_named_once(tmp_path: Path, name: str, content: str) -> None:
    """A field or a file that cannot be used does not lose the training: one line says what is ignored."""
    (tmp_path / "result.json").write_text(GOOD)
    (tmp_path / name).write_text(content)
    (ignored,) = ignored_in(tmp_path)
    assert str(tmp_path / name) in ignored
    assert read_result(tmp_path) == (0.95, 2)
    assert power_limit_in(tmp_path) is None


def test_run_with_a_power_limit_that_is_none(runs: Runs, server: LiveServer) -> None:
    """The line is among those of the trial, and the trial counts."""
    content = GOOD.replace("}", ', "limit_watts_per_gpu": "x"}')
    done = runs.run(job_of(runs, f"open(folder + '/result.json', 'w').write({content!r})"))
    assert (done.returncode, done.stderr) == (0, "")
    assert [trial.newest.epoch for trial in trials(server)] == [2]
    (line,) = [line for line in done.stdout.splitlines() if "limit_watts_per_gpu" in line]
    assert line.startswith("trial 1: ")


def test_trial_folder_that_became_a_link(runs: Runs) -> None:
    """A command that replaces its folder by a link makes the driver read nothing there."""
    (runs.folder / "elsewhere").mkdir()
    (runs.folder / "elsewhere" / "result.json").write_text(GOOD)
    done = runs.run(
        job_of(runs, f"os.rename(folder, folder + '-'); os.symlink({str(runs.folder / 'elsewhere')!r}, folder)")
    )
    assert (done.returncode, "by a link" in done.stderr) == (1, True)


@pytest.mark.parametrize("name", ["history.jsonl", "run.json", "launches/000000.json", "trial-0001.new", ".lock"])
def test_files_of_a_run_that_are_none(runs: Runs, server: LiveServer, name: str) -> None:
    """A run names the file that it needs, and goes on without those that it can do without."""
    path = runs.path() / name
    path.parent.mkdir(parents=True)
    os.mkfifo(path)
    if name != "run.json":
        (runs.path() / "run.json").write_text(json.dumps({"job_id": "test-run", "job_file_id": "test-run"}))
    job = write_job(runs.folder, shell(result()), run={"recurrences": 1})
    done = runs.run(job)
    assert "Traceback" not in done.stderr
    if name in ("history.jsonl", "run.json", ".lock"):
        assert (done.returncode, str(path) in done.stderr) == (1, True)
        assert runs.run(job, "--fresh").returncode == 0
        # A newer run beside the one that cannot be read is continued.
        assert (runs.run(job).returncode, len(trials(server, "test-run-2"))) == (0, 1)
    else:
        assert (done.returncode, len(trials(server))) == (0, 1)
    if name == "launches/000000.json":
        assert str(path) in done.stderr
        (aside,) = path.parent.iterdir()
        assert (aside.suffix, aside.is_fifo()) == (".unreadable", True)


@pytest.mark.parametrize(
    "launch",
    [
        {"launch_id": "a\0b"},
        {"launch_id": ""},
        {"recurrence": -5},
        {"try_number": 0},
        {"number": 10**39},
        {"number": -1},
        None,
    ],
)
def test_launch_that_the_driver_did_not_write(runs: Runs, server: LiveServer, launch: dict[str, object] | None) -> None:
    """The file of a launch that has unusable values, or is a link, is set aside, and the run goes on."""
    path = runs.path() / "launches" / "000000.json"
    path.parent.mkdir(parents=True)
    (runs.path() / "run.json").write_text(json.dumps({"job_id": "test-run", "job_file_id": "test-run"}))
    document = {"number": 0, "recurrence": 1, "try_number": 1, "launch_id": "r", **(launch or {})}
    (path if launch else runs.folder / "elsewhere.json").write_text(json.dumps(document))
    if launch is None:
        path.symlink_to(runs.folder / "elsewhere.json")
    done = runs.run(write_job(runs.folder, shell(result()), run={"recurrences": 1}))
    assert (done.returncode, len(trials(server)), str(path) in done.stderr) == (0, 1, True)
    assert [each.suffix for each in path.parent.iterdir()] == [".unreadable"]


def test_link_in_place_of_a_trial_folder(runs: Runs, server: LiveServer) -> None:
    """A link that leads nowhere has the name of the next trial's folder: the trial gets another one."""
    runs.path().mkdir(parents=True)
    (runs.path() / "run.json").write_text(json.dumps({"job_id": "test-run", "job_file_id": "test-run"}))
    (runs.path() / "trial-0001").symlink_to("nowhere")
    done = runs.run(write_job(runs.folder, shell(result()), run={"recurrences": 1}))
    assert (done.returncode, done.stderr, len(trials(server))) == (0, "", 1)
    assert (runs.path() / "trial-0001-2" / "launch.json").is_file()


def test_file_in_place_of_a_run(runs: Runs, server: LiveServer) -> None:
    """A file that has the name of the run's folder is an error, and a fresh run gets another folder."""
    runs.path().parent.mkdir(parents=True)
    runs.path().touch()
    job = write_job(runs.folder, shell(result()), run={"recurrences": 1})
    done = runs.run(job)
    assert (done.returncode, str(runs.path()) in done.stderr) == (1, True)
    assert (runs.run(job, "--fresh").returncode, len(trials(server, "test-run-2"))) == (0, 1)


def test_lock_of_another_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A lock that another process holds for too long is an error that names the file and the process."""
    monkeypatch.setattr(files, "_LOCK_SECONDS", 0.0)
    path = tmp_path / ".lock"
    with files.locked(path), pytest.raises(files.WriteError) as caught, files.locked(path):
        pass
    assert str(path) in str(caught.value)
    assert f"process {os.getpid()} (" in str(caught.value)
    assert path.stat().st_mode & 0o777 == 0o600


def test_folder_in_place_of_the_address(runs: Runs) -> None:
    """A folder in place of the file with the server's address is an error that names the path."""
    del runs.environment["WATTWISE_SERVER"]
    path = runs.path() / "server.address"
    path.mkdir(parents=True)
    (runs.path() / "run.json").write_text(json.dumps({"job_id": "test-run", "job_file_id": "test-run"}))
    done = runs.run(write_job(runs.folder, shell(result()), run={"recurrences": 1}))
    assert (done.returncode, str(path) in done.stderr, "Traceback" in done.stderr) == (1, True, False)


@pytest.mark.parametrize("content", ["10.0.0.1:50051\n", "localhost:1\n", "", "\0", "127.0.0.1:" + "9" * 5000, None])
def test_address_of_another_server(tmp_path: Path, content: str | None) -> None:
    """The run's own server is on this machine, whatever the file of its address says."""
    path = tmp_path / "server.address"
    os.mkfifo(path) if content is None else path.write_text(content)
    assert OwnServer(tmp_path).written_address() == ""


def test_run_without_the_files_of_its_server(runs: Runs) -> None:
    """A pipe in place of the address is replaced."""
    del runs.environment["WATTWISE_SERVER"]
    runs.path().mkdir(parents=True)
    (runs.path() / "run.json").write_text(json.dumps({"job_id": "test-run", "job_file_id": "test-run"}))
    for name in ("server.address", "server.address.new"):
        os.mkfifo(runs.path() / name)
    assert runs.run(write_job(runs.folder, shell(result()), run={"recurrences": 1})).returncode == 0


@pytest.mark.parametrize(
    "content",
    [
        "[1]",
        "[" * 100_000,
        "{}",
        '{"exit_code": "0", "time_seconds": 1, "energy_joules": 1}',
        '{"exit_code": 0, "time_seconds": 1e999, "energy_joules": 1}',
        '{"exit_code": 0, "time_seconds": 1, "energy_joules": 1, "over_cost_bound": 1}',
        '{"exit_code": 0, "time_seconds": 1, "energy_joules": 1, "monitor": {"kinds": [1]}}',
        '{"exit_code": 0, "time_seconds": 1, "energy_joules": 1, "epochs": {}}',
        '{"exit_code": 0, "time_seconds": 1, "energy_joules": 1, "epochs": [[1, 2]]}',
        '{"exit_code": 0, "time_seconds": 1, "energy_joules": 1, "epochs": [[10000000000, 0.5, 1, 1]]}',
        '{"exit_code": 0, "time_seconds": 1, "energy_joules": 1, "epochs": [[1, 0.5, 1e999, 1]]}',
        '{"exit_code": 0, "time_seconds": 1, "energy_joules": 1, "epochs": [[1, 0.5, 1, -1]]}',
        '{"exit_code": 0, "time_seconds": -1, "energy_joules": 1}',
        '{"exit_code": 0, "time_seconds": 1, "energy_joules": -1}',
    ],
)
def test_measurement_that_the_driver_did_not_write(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, content: str
) -> None:
    """What is malformed counts as missing, with a warning that names the file."""
    (tmp_path / "measured.json").write_text(content)
    assert saved_outcome(tmp_path, 300.0) is None
    (warning,) = caplog.messages
    assert str(tmp_path / "measured.json") in warning


def test_end_that_the_supervisor_did_not_write(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A malformed end of a command is like none."""
    LaunchOutcome(RUNNING, 1.0, 100.0, monitor=MonitorKinds(("nvml",))).save(tmp_path)
    (tmp_path / "ended.json").write_text('{"exit_code": []}')
    assert saved_outcome(tmp_path, 300.0) is None
    assert len(caplog.messages) == 1


LINE = json.loads(json.dumps({**vars(RECORD), "try": 1}, default=vars))
"""A line of the history."""
CHANGES: list[dict[str, Any]] = [
    {"trial": "1"},
    {"trial": 1e999},
    {"epochs": 1.5},
    {"cost": "x"},
    {"reached": 1},
    {"monitor": []},
]


@pytest.mark.parametrize("line", ["[1]", "{}", *(json.dumps(LINE | change) for change in CHANGES)])
def test_history_with_other_types(tmp_path: Path, line: str) -> None:
    """A line that is complete, and not a trial's, is named."""
    path = tmp_path / "history.jsonl"
    History(path).append(RECORD)
    with path.open("a") as file:
        file.write(f"{line}\n")
    with pytest.raises(HistoryError, match=r"line 2 of .*--fresh"):
        History(path).read()


@pytest.mark.parametrize("line", [b"[" * 100_000, b'{"launch": 1, "recurr', b"\xff\xfe"])
def test_history_with_a_line_that_is_not_json(tmp_path: Path, caplog: pytest.LogCaptureFixture, line: bytes) -> None:
    """A line that was only partly written is left out, with a warning that names it, and the others count."""
    path = tmp_path / "history.jsonl"
    path.write_bytes(line + b"\n")
    History(path).append(RECORD)
    assert History(path).read() == [RECORD]
    (warning,) = caplog.messages
    assert warning.startswith(f"line 1 of {path}")


@pytest.mark.parametrize("kind", SPECIAL)
def test_output_that_is_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """Metrics are not read in a pipe or a device that has replaced the output, which is said once."""
    monkeypatch.setattr(evaluations, "_MOST_BEHIND", 1000)
    output = Output(tmp_path)
    output.path.unlink()
    SPECIAL[kind](output.path)
    for to_end in (False, True):
        assert list(output.reader.read(lambda: (1.0, 1.0), to_end=to_end)) == []
    assert len(output.said) == 1


def test_output_that_is_too_much(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The end of an output that has grown too fast is read, and the user is notified."""
    monkeypatch.setattr(evaluations, "_MOST_BEHIND", 1000)
    output = Output(tmp_path)
    assert output.read(f"acc: 0.5\n{'x' * 10_000}\nacc: 0.75\n", to_end=True) == [(1, 0.75)]
    assert len(output.said) == 1


def test_line_for_a_terminal() -> None:
    """A command's output moves no cursor, sets no title and reverses no text on the driver's terminal."""
    shown = shown_line("10%\r\x1b]0;title\x07\x1b[2J\x1b[31mred\x1b[0m \u202eevil\x9b2J\x00\t.\r")
    assert shown == "red \\u202eevil\\x9b2J\\x00   ."
    assert len(shown_line("x" * 2_000_000)) == 500


def test_reason_of_a_server(capsys: pytest.CaptureFixture[str]) -> None:
    """What a server says cannot move the cursor."""
    Board("test-run", 1).say("a reason\x1b[2J")
    assert capsys.readouterr().out == "a reason\\x1b[2J\n"


@pytest.mark.parametrize("kind", SPECIAL)
def test_terminal_of_an_output_that_is_no_file(tmp_path: Path, kind: str) -> None:
    """A driver on a terminal shows nothing of what has replaced the output."""
    SPECIAL[kind](tmp_path / "output.log")
    Board("test-run", 1).follow(tmp_path / "output.log")


def test_long_line_on_a_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A line without an end is shown in parts, and not read again and again."""
    board, path = Board("test-run", 1), tmp_path / "output.log"
    path.write_bytes(b"x" * 3_000_000)
    for _ in range(4):
        board.follow(path)
    assert len(capsys.readouterr().out.splitlines()) == 2
    with path.open("ab") as file:
        file.write(b"y\n")
    for _ in range(2):
        board.follow(path)
    (rest,) = capsys.readouterr().out.splitlines()
    assert rest.startswith("x")


def test_client_file_of_a_client(tmp_path: Path) -> None:
    """What a client writes is read, whatever has the name of its draft."""
    os.mkfifo(tmp_path / f"client.json.{os.getpid()}")
    written: Any = ClientFile(joined=True, limit_watts_per_gpu=175.0)
    written.write(tmp_path)
    assert ClientFile.read(tmp_path) == written


@pytest.mark.parametrize("kind", SPECIAL)
def test_measurements_beside_a_file_of_the_command(tmp_path: Path, kind: str) -> None:
    """The driver and the supervisor do not write through what has the name of their drafts."""
    for name in ("measuring.json.new", "ended.json.new"):
        SPECIAL[kind](tmp_path / name)
    LaunchOutcome(RUNNING, 1.0, 100.0, monitor=MonitorKinds(("nvml",))).save(tmp_path)
    supervisor.write(str(tmp_path / "ended.json"), '{"exit_code": 3, "time_seconds": 1}')
    found = saved_outcome(tmp_path, 300.0)
    assert (found is None) == (kind == "folder")
    assert found is None or found.exit_code == 3
