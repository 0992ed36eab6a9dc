"""Drivers, servers and commands that die during a run."""

from __future__ import annotations

import json
import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest
from wattwise import Client, v1
from wattwise.driver.files import try_lock
from wattwise.training.journal import TrialRecord
from wattwise.training.spool import Spool

from tests.client.driver.running import JOB_ID, Runs, alive, ended, result, servers_of, shell, with_client, write_job
from tests.live_server import LiveServer
from tests.waiting import wait_until

pytestmark = pytest.mark.thorough


def statuses(address: str) -> list[v1.EndReason.ValueType]:
    """The end reasons of a run's trials."""
    with Client(address) as client:
        return [trial.end_reason for trial in client.trials(JOB_ID)]


def hang_once(folder: Path) -> list[str]:
    """A command that writes its process ids and hangs in its first launch, and succeeds in later ones."""
    pids = folder / "pids"
    hang = f"sh -c 'echo $$ >> {pids}; sleep 100' & echo $$ >> {pids}; wait"
    return shell(f"if [ {{seed}} = 100 ]; then {hang}; fi", result())


def hanging(runs: Runs) -> list[int]:
    """The two processes of the hanging command, once they run."""
    pids = runs.folder / "pids"
    wait_until(lambda: pids.exists() and len(pids.read_text().split()) == 2)
    return [int(pid) for pid in pids.read_text().split()]


def measured(runs: Runs) -> Path:
    """The folder of the first trial, once its driver has measured a part of the training."""
    wait_until(lambda: any((folder / "measuring.json").exists() for folder in runs.trial_folders()))
    (folder,) = runs.trial_folders()
    wait_until(lambda: json.loads((folder / "measuring.json").read_text())["time_seconds"] > 0)
    return folder


def is_abandoned(launch: Path) -> bool:
    """Whether no process holds a launch."""
    lock = try_lock(launch)
    if lock is not None:
        os.close(lock)
    return lock is not None


@pytest.mark.parametrize("own_server", [True, False])
def test_run_continues_after_its_driver_is_killed(runs: Runs, server: LiveServer, *, own_server: bool) -> None:
    """A killed driver's command dies too; the next driver ends the trial, retries it and finishes the run."""
    if not own_server:
        runs.environment["WATTWISE_SERVER"] = server.address
    job = write_job(runs.folder, hang_once(runs.folder))
    driver = runs.start(job)
    processes = hanging(runs)
    driver.kill()
    driver.wait()
    wait_until(lambda: servers_of(runs.path()) == [])
    # Until the command's supervisor has ended, another driver leaves the launch to it and begins the next one.
    wait_until(lambda: is_abandoned(runs.path() / "launches/000000.json"))
    again = runs.run(job)
    assert (again.returncode, again.stderr) == (0, "")
    assert not any(alive(pid) for pid in processes)
    assert [(line["recurrence"], line["try"], line["end_reason"], line["seed"]) for line in runs.history()] == [
        (1, 1, "preempted", 100),
        (1, 2, "target reached", 101),
        (2, 1, "target reached", 102),
    ]
    if not own_server:
        preempted, reached = v1.END_REASON_PREEMPTED, v1.END_REASON_TARGET_REACHED
        assert statuses(server.address) == [preempted, reached, reached]


def test_requested_trial_is_started_by_the_next_driver(runs: Runs, server: LiveServer) -> None:
    """A launch that was recorded but not started repeats its request, and so gets the same trial."""
    runs.environment["WATTWISE_SERVER"] = server.address
    job = write_job(runs.folder, shell(result()), run={"recurrences": 1})
    assert runs.run(job).returncode == 0
    launches = runs.path() / "launches"
    with Client(server.address) as client:
        trial = client.get_next_batch_size(JOB_ID, launch_id="of-the-killed").trial
    assert trial.id.trial_number == 2
    launch = '{"number": 1, "recurrence": 2, "try_number": 1, "launch_id": "of-the-killed"}'
    (launches / "000001.json").write_text(launch)
    assert runs.run(write_job(runs.folder, shell(result()))).returncode == 0
    assert [(line["trial"], line["seed"]) for line in runs.history()] == [(1, 100), (2, 101)]
    assert statuses(server.address) == [v1.END_REASON_TARGET_REACHED] * 2


def test_torn_line_is_ignored(runs: Runs, server: LiveServer) -> None:
    """After a partly written line, its launch is repeated, and the history continues on a new line."""
    runs.environment["WATTWISE_SERVER"] = server.address
    assert runs.run(write_job(runs.folder, shell(result()), run={"recurrences": 1})).returncode == 0
    with (runs.path() / "history.jsonl").open("a") as file:
        file.write('{"launch": 1, "recurre')
    assert runs.run(write_job(runs.folder, shell(result()))).returncode == 0
    first, torn, second = (runs.path() / "history.jsonl").read_text().splitlines()
    assert '"recurrence": 1' in first
    assert torn == '{"launch": 1, "recurre'
    assert '"recurrence": 2' in second


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
@pytest.mark.parametrize("command", ["client", "shell"])
def test_stopped_driver_ends_its_trial(
    runs: Runs, server: LiveServer, number: signal.Signals, status: int, command: str
) -> None:
    """Ctrl-C and SIGTERM end the command, then the trial as preempted, then the driver."""
    runs.environment["WATTWISE_SERVER"] = server.address
    words = with_client("hang") if command == "client" else hang_once(runs.folder)
    driver = runs.start(write_job(runs.folder, words))
    if command == "client":
        wait_until(lambda: any((folder / "hangs").exists() for folder in runs.trial_folders()))
    else:
        processes = hanging(runs)
    driver.send_signal(number)
    done = ended(driver)
    assert done.returncode == status
    assert f"stopped by {number.name}" in done.stderr
    if command == "shell":
        assert not any(alive(pid) for pid in processes)
    assert statuses(server.address) == [v1.END_REASON_PREEMPTED]
    (line,) = runs.history()
    assert (line["end_reason"], line["measured_by"]) == ("preempted", "command" if command == "client" else "driver")
    assert list((runs.path() / "launches").iterdir()) == []


@pytest.mark.parametrize(("written", "reason"), [(True, "target reached"), (False, "preempted")])
def test_command_that_ended_before_the_signal(runs: Runs, server: LiveServer, reason: str, *, written: bool) -> None:
    """A driver that is interrupted after the end of its command reports the result before it ends."""
    runs.environment["WATTWISE_SERVER"] = server.address
    steps = ["until test -e {log_dir}/go; do sleep 0.02; done", *([result()] if written else [])]
    driver = runs.start(write_job(runs.folder, shell(*steps)))
    folder = measured(runs)
    os.kill(driver.pid, signal.SIGSTOP)
    (folder / "go").touch()
    wait_until((folder / "ended.json").exists)
    os.kill(driver.pid, signal.SIGTERM)
    os.kill(driver.pid, signal.SIGCONT)
    assert ended(driver).returncode == 128 + signal.SIGTERM
    (line,) = runs.history()
    assert (line["end_reason"], line["exit_code"], line["measured_by"]) == (reason, 0, "driver")
    assert list((runs.path() / "launches").iterdir()) == []


def test_second_interrupt(runs: Runs, server: LiveServer) -> None:
    """A second Ctrl-C kills a command that has not ended yet."""
    runs.environment["WATTWISE_SERVER"] = server.address
    began, asked = runs.folder / "began", runs.folder / "asked"
    slow = shell(f"trap 'touch {asked}' TERM; touch {began}; while true; do sleep 0.02; done")
    driver = runs.start(write_job(runs.folder, slow, run={"grace_seconds": 1000}))
    wait_until(began.exists)
    driver.send_signal(signal.SIGINT)
    wait_until(asked.exists)
    driver.send_signal(signal.SIGINT)
    assert ended(driver).returncode == 130
    (line,) = runs.history()
    assert (line["exit_code"], line["end_reason"]) == (137, "preempted")
    assert statuses(server.address) == [v1.END_REASON_PREEMPTED]


def test_server_is_away_when_the_command_ends(runs: Runs, server: LiveServer) -> None:
    """The driver waits for a server that is away when the command ends, and reports the result."""
    flag = runs.folder / "go"
    began = runs.folder / "began"
    runs.environment["WATTWISE_SERVER"] = server.address
    wait = f"touch {began}; until test -e {flag}; do sleep 0.02; done"
    driver = runs.start(write_job(runs.folder, shell(wait, result()), run={"recurrences": 1}))
    wait_until(began.exists)
    server.kill()
    flag.touch()
    wait_until(lambda: any(runs.path().glob("trial-*/measured.json")))
    server.start()
    assert ended(driver).returncode == 0
    (line,) = runs.history()
    assert (line["end_reason"], line["measured_by"]) == ("target reached", "driver")


def test_client_that_ends_without_the_server(runs: Runs, server: LiveServer, spool: Path) -> None:
    """What a client could not deliver when its command ended is delivered by the driver before it ends the trial."""
    runs.environment["WATTWISE_SERVER"] = server.address
    driver = runs.start(write_job(runs.folder, with_client("waits"), run={"recurrences": 1}))
    wait_until(lambda: any((folder / "waits").exists() for folder in runs.trial_folders()))
    server.kill()
    (folder,) = runs.trial_folders()
    (folder / "go").touch()
    wait_until((folder / "measured.json").exists)
    assert len(list(spool.rglob("*.wattwise-trial"))) == 1
    server.start()
    assert ended(driver).returncode == 0
    (line,) = runs.history()
    assert (line["end_reason"], line["epochs"], line["measured_by"]) == ("target reached", 2, "command")
    assert list(spool.rglob("*.wattwise-trial")) == []


@pytest.mark.parametrize("outage", [True, False])
@pytest.mark.parametrize(
    ("end", "expected"),
    [
        ("waits-and-exits-0", ("stopped early", 0, 2)),
        ("waits-and-exits-3", ("error", 3, 2)),
        ("waits-without-a-report", ("preempted", 0, 0)),
    ],
)
def test_end_reason_does_not_depend_on_an_outage(
    runs: Runs, server: LiveServer, end: str, expected: tuple[str, int, int], *, outage: bool
) -> None:
    """The exit status of a command decides why its undecided trial ended, whether or not the server is away then."""
    runs.environment["WATTWISE_SERVER"] = server.address
    driver = runs.start(write_job(runs.folder, with_client(end), run={"recurrences": 1, "max_tries": 1}))
    wait_until(lambda: any((folder / "waits").exists() for folder in runs.trial_folders()))
    if outage:
        server.kill()
    (folder,) = runs.trial_folders()
    (folder / "go").touch()
    if outage:
        wait_until((folder / "measured.json").exists)
        server.start()
    assert ended(driver).returncode == 1
    (line,) = runs.history()
    assert (line["end_reason"], line["exit_code"], line["epochs"]) == expected


@pytest.mark.thorough
def test_trial_of_an_own_server_is_found_at_another_port(runs: Runs, spool: Path) -> None:
    """The spool names the own server of a run by its database, so that the next one delivers to it at any port."""
    job = write_job(runs.folder, with_client("waits"), run={"recurrences": 1})
    driver = runs.start(job)
    wait_until(lambda: any((folder / "waits").exists() for folder in runs.trial_folders()))
    (path,) = spool.rglob("*.wattwise-trial")
    record = TrialRecord.from_lines(path.read_text().splitlines())
    assert record.server == f"sqlite:///{runs.path().resolve() / 'wattwise.db'}"
    (folder,) = runs.trial_folders()
    (folder / "go").touch()
    assert ended(driver).returncode == 0
    assert not path.exists()
    left = Spool(spool).journal(replace(record, launch_id="left-behind", end_reason=v1.END_REASON_ERROR))
    left.release()
    assert runs.run(write_job(runs.folder, with_client("once"), run={"recurrences": 2})).returncode == 0
    assert list(spool.rglob("*.wattwise-trial")) == []


@pytest.mark.parametrize("command", ["client", "shell"])
def test_server_loses_its_database(runs: Runs, server: LiveServer, command: str) -> None:
    """A command is not stopped by a server that lost its database; its trial is delivered at its end."""
    runs.environment["WATTWISE_SERVER"] = server.address
    wait = "touch {log_dir}/waits; until test -e {log_dir}/go; do sleep 0.02; done"
    words = with_client("waits") if command == "client" else shell(wait, result())
    driver = runs.start(write_job(runs.folder, words, run={"recurrences": 1}, job={"trial_lease_seconds": 1.0}))
    wait_until(lambda: any((folder / "waits").exists() for folder in runs.trial_folders()))
    server.stop()
    server.lose_database()
    refused = server.log.read_text().count("NOT_FOUND")
    server.start()
    wait_until(lambda: server.log.read_text().count("NOT_FOUND") > refused)
    (folder,) = runs.trial_folders()
    (folder / "go").touch()
    done = ended(driver)
    assert done.returncode == 0, done.stderr
    with Client(server.address) as client:
        (trial,) = client.trials(JOB_ID)
    assert (trial.origin, trial.end_reason) == (v1.TRIAL_ORIGIN_IMPORTED, v1.END_REASON_TARGET_REACHED)
    (line,) = runs.history()
    assert (line["end_reason"], line["epochs"], line["reached"]) == ("target reached", 2, True)


@pytest.mark.parametrize("command", ["client", "shell"])
def test_number_that_another_launch_has(runs: Runs, server: LiveServer, command: str) -> None:
    """A server with another database gets nothing for the trial of another launch, which has the same number."""
    runs.environment["WATTWISE_SERVER"] = server.address
    wait = "touch {log_dir}/waits; until test -e {log_dir}/go; do sleep 0.02; done"
    words = with_client("waits") if command == "client" else shell(wait, result())
    driver = runs.start(write_job(runs.folder, words, run={"recurrences": 1}))
    wait_until(lambda: any((folder / "waits").exists() for folder in runs.trial_folders()))
    with Client(server.address) as client:
        spec = client.get_job(JOB_ID).job.spec
    server.stop()
    server.lose_database()
    with LiveServer(server.database.parent) as aside:
        with Client(aside.start()) as client:
            client.register_job(spec)
            other = client.get_next_batch_size(JOB_ID, launch_id="another").trial
        aside.stop()
    server.start()
    (folder,) = runs.trial_folders()
    (folder / "go").touch()
    done = ended(driver)
    assert done.returncode == 0, done.stderr
    with Client(server.address) as client:
        assert client.get_trial(other.id).trial.status == v1.TRIAL_STATUS_RUNNING
        assert client.get_trial(other.id).trial.newest.epoch == 0
        _, own = client.trials(JOB_ID)
    assert (own.origin, own.end_reason) == (v1.TRIAL_ORIGIN_IMPORTED, v1.END_REASON_TARGET_REACHED)
    (line,) = runs.history()
    assert (line["end_reason"], line["epochs"], line["reached"]) == ("target reached", 2, True)


def test_measured_training_survives_its_driver(runs: Runs, server: LiveServer) -> None:
    """If a driver is killed after the training but before its report, the next driver reports the result."""
    runs.environment["WATTWISE_SERVER"] = server.address
    job = write_job(
        runs.folder, shell("until test -e {log_dir}/go; do sleep 0.02; done", result()), run={"recurrences": 1}
    )
    driver = runs.start(job)
    wait_until(lambda: len(runs.trial_folders()) == 1)
    server.kill()
    (folder,) = runs.trial_folders()
    (folder / "go").touch()
    wait_until((folder / "measured.json").exists)
    driver.kill()
    driver.wait()
    server.start()
    assert runs.run(job).returncode == 0
    (line,) = runs.history()
    assert (line["end_reason"], line["try"], line["measured_by"]) == ("target reached", 1, "driver")


def test_training_that_ends_as_its_driver_dies_counts(runs: Runs, server: LiveServer) -> None:
    """If a driver is killed before it has seen the end of its command, the next one reports the result."""
    runs.environment["WATTWISE_SERVER"] = server.address
    waiting = "until test -e {log_dir}/go; do sleep 0.02; done"
    job = write_job(runs.folder, shell(waiting, result()), run={"recurrences": 1})
    driver = runs.start(job)
    folder = measured(runs)
    os.kill(driver.pid, signal.SIGSTOP)
    (folder / "go").touch()
    wait_until((folder / "ended.json").exists)
    driver.kill()
    driver.wait()
    assert not (folder / "measured.json").exists()
    assert runs.run(job).returncode == 0
    (line,) = runs.history()
    kept = {name: line[name] for name in ("end_reason", "try", "measured_by", "exit_code")}
    assert kept == {
        "end_reason": "target reached",
        "try": 1,
        "measured_by": "driver",
        "exit_code": 0,
    }
    # The driver begins to measure before the supervisor does.
    known = [json.loads((folder / name).read_text())["time_seconds"] for name in ("measuring.json", "ended.json")]
    assert line["time_seconds"] == pytest.approx(max(known))
    assert line["energy_joules"] == pytest.approx(100 * line["time_seconds"])


def test_preempted_training_survives_its_driver(runs: Runs, server: LiveServer) -> None:
    """A trial that its client ended as preempted stays so if its driver is killed; the recurrence is tried again."""
    runs.environment["WATTWISE_SERVER"] = server.address
    job = write_job(runs.folder, with_client("preempted-waits"), run={"recurrences": 1})
    driver = runs.start(job)
    wait_until(lambda: any((folder / "ended").exists() for folder in runs.trial_folders()))
    server.kill()
    (folder,) = runs.trial_folders()
    (folder / "go").touch()
    wait_until((folder / "measured.json").exists)
    driver.kill()
    driver.wait()
    server.start()
    assert runs.run(job).returncode == 0
    assert statuses(server.address) == [v1.END_REASON_PREEMPTED, v1.END_REASON_TARGET_REACHED]
    assert [(line["trial"], line["try"], line["end_reason"], line["exit_code"]) for line in runs.history()] == [
        (1, 1, "preempted", 1),
        (2, 2, "target reached", 0),
    ]


def test_trial_that_ended_before_it_started(runs: Runs, server: LiveServer) -> None:
    """A trial that ended before its command started is recorded, and another one is trained."""
    runs.environment["WATTWISE_SERVER"] = server.address
    assert runs.run(write_job(runs.folder, shell(result()), run={"recurrences": 1})).returncode == 0
    with Client(server.address) as client:
        trial = client.get_next_batch_size(JOB_ID, launch_id="of-the-killed").trial
        client.end_trial(trial.id, v1.END_REASON_PREEMPTED)
    launch = '{"number": 1, "recurrence": 2, "try_number": 1, "launch_id": "of-the-killed"}'
    (runs.path() / "launches" / "000001.json").write_text(launch)
    assert runs.run(write_job(runs.folder, shell(result()))).returncode == 0
    assert [(line["trial"], line["end_reason"]) for line in runs.history()] == [
        (1, "target reached"),
        (2, "preempted"),
        (3, "target reached"),
    ]
    assert [folder.name for folder in runs.trial_folders()] == ["trial-0001", "trial-0003"]


def test_own_server_is_restarted(runs: Runs) -> None:
    """If the run's own server dies, the driver restarts it on the same address, and the run continues."""
    flag = runs.folder / "go"
    job = write_job(runs.folder, shell(f"until test -e {flag}; do sleep 0.02; done", result()), run={"recurrences": 1})
    driver = runs.start(job)
    wait_until(lambda: len(runs.trial_folders()) == 1)
    file = runs.path() / "server.address"
    address = file.read_text()
    (own,) = servers_of(runs.path())
    os.kill(own, signal.SIGKILL)
    wait_until(lambda: servers_of(runs.path()) not in ([], [own]) and file.exists())
    assert file.read_text() == address
    flag.touch()
    assert ended(driver).returncode == 0
    assert [line["end_reason"] for line in runs.history()] == ["target reached"]
