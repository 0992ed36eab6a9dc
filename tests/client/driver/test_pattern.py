"""A run whose driver reads the metrics in the command's output."""

from __future__ import annotations

import json
import os
import signal
from typing import Any

import pytest
from wattwise import Client, v1
from wattwise.driver.evaluations import fault_in

from tests.client.driver.running import JOB_ID, PYTHON, Runs, ended, result, shell, with_client, write_job
from tests.client.driver.test_kills import is_abandoned
from tests.client.training.script import epochs
from tests.live_server import LiveServer
from tests.waiting import wait_until

PATTERN = {"metric_pattern": r"acc: (\S+)"}
HANG = "touch {log_dir}/hangs; sleep 100"
WAIT = "touch {log_dir}/waits; until test -e {log_dir}/go; do sleep 0.02; done"


def job_of(runs: Runs, *steps: str, train: dict[str, Any] = PATTERN, **changes: Any) -> Any:
    """A job file of one recurrence with these steps."""
    return write_job(
        runs.folder, shell(*steps), train=train, run={"recurrences": 1} | changes.pop("run", {}), **changes
    )


def trials(server: LiveServer) -> list[v1.Trial]:
    """The run's trials on the server."""
    with Client(server.address) as client:
        return list(client.trials(JOB_ID))


def waits(runs: Runs, name: str = "waits") -> Any:
    """The folder of the trial whose command waits, once it does."""
    wait_until(lambda: any((folder / name).exists() for folder in runs.trial_folders()))
    return runs.trial_folders()[-1]


@pytest.fixture(autouse=True)
def used_server(runs: Runs, server: LiveServer) -> LiveServer:
    """The server of the runs."""
    runs.environment["WATTWISE_SERVER"] = server.address
    return server


def test_metrics_are_reported_as_they_are_printed(runs: Runs, server: LiveServer) -> None:
    """Each epoch has the time and energy up to it, and the command is ended at the target."""
    driver = runs.start(job_of(runs, "sleep 0.3; echo acc: 0.5", WAIT, "sleep 0.3; echo acc: 0.95 >&2", HANG))
    folder = waits(runs)
    wait_until(lambda: trials(server)[0].newest.epoch == 1)
    (folder / "go").touch()
    done = ended(driver)
    assert (done.returncode, done.stderr) == (0, "")
    (trial,) = trials(server)
    assert (trial.end_reason, trial.newest.epoch, trial.newest.metric) == (v1.END_REASON_TARGET_REACHED, 2, 0.95)
    with Client(server.address) as client:
        first, second = client.measurements(trial.id)
    assert 0.3 <= first.time_seconds <= second.time_seconds - 0.3
    assert second.energy_joules == pytest.approx(100 * second.time_seconds)
    (line,) = runs.history()
    assert (line["measured_by"], line["exit_code"], line["epochs"]) == ("driver", 128 + signal.SIGTERM, 2)
    assert line["time_seconds"] == second.time_seconds


def test_output_is_unchanged(runs: Runs) -> None:
    """The log has what the command printed, byte for byte."""
    text = r"\033[32macc: 0.1\033[0m\r\racc: 0.95\n 50%%"
    assert runs.run(job_of(runs, f"printf '{text}'")).returncode == 0
    (folder,) = runs.trial_folders()
    assert (folder / "output.log").read_bytes() == b"\x1b[32macc: 0.1\x1b[0m\r\racc: 0.95\n 50%"


@pytest.mark.parametrize(
    ("steps", "end_reason", "last_epoch"),
    [
        ("echo acc: 0.5; exit 3", v1.END_REASON_ERROR, 1),
        ("echo acc: 0.5; exit 0", v1.END_REASON_STOPPED_EARLY, 1),
        ("echo acc: 0.1; echo acc: 0.2; echo acc: 0.3; exit 0", v1.END_REASON_MAX_EPOCHS, 3),
        ("echo acc: inf; exit 0", v1.END_REASON_STOPPED_EARLY, 1),
        ("printf 'acc: 0.95'", v1.END_REASON_TARGET_REACHED, 1),
    ],
)
def test_end_of_the_command(
    runs: Runs, server: LiveServer, steps: str, end_reason: v1.EndReason.ValueType, last_epoch: int
) -> None:
    """The epochs before the end count, whatever the exit status."""
    runs.run(job_of(runs, steps))
    (trial,) = trials(server)
    assert (trial.end_reason, trial.newest.epoch) == (end_reason, last_epoch)


def test_epochs_of_the_output(runs: Runs, server: LiveServer) -> None:
    """With an epoch pattern the output numbers the epochs; what it repeats is said and ignored."""
    lines = "echo epoch 1 acc: 0.1; echo epoch 1 acc: 0.95; echo epoch 3 acc: 0.95"
    done = runs.run(job_of(runs, lines, train=PATTERN | {"epoch_pattern": r"epoch (\d+)"}))
    assert done.returncode == 0
    (trial,) = trials(server)
    with Client(server.address) as client:
        assert epochs(client, trial.id) == [1, 3]
    assert done.stdout.count("trial 1: the output has another metric of epoch 1 ") == 1


def test_cost_bound(runs: Runs) -> None:
    """The server stops a command when its cost exceeds the bound after an epoch."""
    endless = "if [ {recurrence}{try} = 21 ]; then while sleep 0.1; do echo acc: 0.5; done; fi; echo acc: 0.95"
    job = {"beta_knob": 1.5, "max_epochs": 100_000}
    done = runs.run(job_of(runs, endless, job=job, run={"recurrences": 2}))
    assert (done.returncode, done.stderr) == (0, "")
    _, stopped, _ = runs.history()
    assert (stopped["end_reason"], stopped["measured_by"]) == ("cost bound", "driver")


def test_client_takes_precedence(runs: Runs, server: LiveServer) -> None:
    """The reports of a client in the command count, and the pattern is ignored."""
    job = write_job(runs.folder, with_client("well"), train={"metric_pattern": r"epoch (\d)"}, run={"recurrences": 1})
    done = runs.run(job)
    assert (done.returncode, done.stderr) == (0, "")
    (line,) = runs.history()
    assert (line["measured_by"], line["epochs"], line["exit_code"]) == ("command", 2, 0)
    (trial,) = trials(server)
    assert trial.newest.metric == 0.95


def test_reports_of_a_client_in_another_language_take_precedence(runs: Runs, server: LiveServer) -> None:
    """A program that reports the trial by itself is recognized by its reports."""
    prints = "echo acc: 0.5; echo acc: 0.6; echo acc: 0.95; exit 5"
    driver = runs.start(job_of(runs, WAIT, prints, job={"trial_lease_seconds": 1.0, "max_epochs": 10}))
    folder = waits(runs)
    (trial,) = trials(server)
    with Client(server.address) as client:
        own = v1.TrainingResult(
            trial=trial.id, measurement=v1.Measurement(time_seconds=0.1, energy_joules=1, metric=0.1, epoch=2)
        )
        client.report_result(own)
    expiries = set()

    def renewed() -> bool:
        expiries.add(trials(server)[0].lease_expire_time.ToNanoseconds())
        # By the report, and by two heartbeats, of which the driver has the first one's answer.
        return len(expiries) > 2

    wait_until(renewed)
    (folder / "go").touch()
    ended(driver)
    (trial,) = trials(server)
    assert (trial.end_reason, trial.newest.epoch, trial.newest.metric) == (v1.END_REASON_ERROR, 2, 0.1)


def test_client_that_only_asks(runs: Runs) -> None:
    """The metrics in the output count if a client has joined for the batch size alone."""
    asks = "from wattwise import BatchSizeOptimizer; BatchSizeOptimizer.from_env().get_batch_size(); print('acc: 0.95')"
    job = write_job(runs.folder, [PYTHON, "-c", asks], train=PATTERN, run={"recurrences": 1})
    assert runs.run(job).returncode == 0
    (line,) = runs.history()
    assert (line["reached"], line["measured_by"]) == (True, "driver")


@pytest.mark.parametrize(("printed", "epochs_counted"), [("acc: 0.95", 1), ("accuracy 0.95", 2)])
def test_pattern_takes_precedence_over_a_file(
    runs: Runs, server: LiveServer, printed: str, epochs_counted: int
) -> None:
    """result.json counts only if the output has no metric."""
    assert runs.run(job_of(runs, f"echo {printed}", result())).returncode == 0
    (trial,) = trials(server)
    assert (trial.end_reason, trial.newest.epoch) == (v1.END_REASON_TARGET_REACHED, epochs_counted)


@pytest.mark.parametrize(
    ("command", "train", "named"),
    [
        (shell("exit 0"), {}, '{"metric": 0.98, "epochs": 7}'),
        (shell('echo \'{{"metric": "good", "epochs": 1}}\' > {log_dir}/result.json'), {}, "metric 'good'"),
        (shell("echo accuracy 0.95"), PATTERN, r"'acc: (\\S+)'"),
        (shell("echo acc: unknown"), PATTERN, "'unknown'"),
        (with_client("forgets"), {}, "on_evaluate(metric)"),
    ],
)
def test_forgotten_result(
    runs: Runs, server: LiveServer, command: list[str], train: dict[str, str], named: str
) -> None:
    """A command that succeeds without a result ends the run with an error, and its batch size is not blamed."""
    done = runs.run(write_job(runs.folder, command, train=train, run={"recurrences": 1}))
    assert done.returncode == 1
    assert named in done.stderr
    with Client(server.address) as client:
        arm = next(arm for arm in client.get_job(JOB_ID).details.batch_size_states if arm.batch_size == 16)
    assert (arm.num_failed, arm.num_not_converged) == (0, 0)
    assert [trial.end_reason for trial in trials(server)] == [v1.END_REASON_PREEMPTED]
    assert runs.run(write_job(runs.folder, shell(result()), run={"recurrences": 1})).returncode == 0
    assert [(line["try"], line["batch_size"], line["end_reason"]) for line in runs.history()] == [
        (1, 16, "preempted"),
        (2, 16, "target reached"),
    ]


def test_server_is_away(runs: Runs, server: LiveServer) -> None:
    """The command ends at its target without the server, which gets every epoch later."""
    driver = runs.start(job_of(runs, WAIT, "echo acc: 0.5; echo acc: 0.95", HANG))
    folder = waits(runs)
    server.kill()
    (folder / "go").touch()
    wait_until((folder / "measured.json").exists)
    server.start()
    assert ended(driver).returncode == 0
    (trial,) = trials(server)
    with Client(server.address) as client:
        assert epochs(client, trial.id) == [1, 2]
    assert runs.history()[0]["measured_by"] == "driver"


def test_server_loses_its_database(runs: Runs, server: LiveServer) -> None:
    """The epochs are delivered to a server that no longer knows the trial."""
    driver = runs.start(job_of(runs, WAIT, "echo acc: 0.5; echo acc: 0.95"))
    folder = waits(runs)
    server.stop()
    server.lose_database()
    server.start()
    (folder / "go").touch()
    assert ended(driver).returncode == 0
    (trial,) = trials(server)
    assert (trial.origin, trial.end_reason) == (v1.TRIAL_ORIGIN_IMPORTED, v1.END_REASON_TARGET_REACHED)
    with Client(server.address) as client:
        assert epochs(client, trial.id) == [1, 2]


def test_epochs_that_the_driver_did_not_see(runs: Runs, server: LiveServer) -> None:
    """If a driver is killed as its command ends, the next one reads the rest of the output."""
    job = job_of(runs, "echo acc: 0.1; echo acc: 0.5", WAIT, "echo acc: 0.95", job={"max_epochs": 10})
    driver = runs.start(job)
    folder = waits(runs)
    wait_until(lambda: trials(server)[0].newest.epoch == 2)
    os.kill(driver.pid, signal.SIGSTOP)
    (folder / "go").touch()
    wait_until((folder / "ended.json").exists)
    driver.kill()
    driver.wait()
    done = runs.run(job)
    assert done.returncode == 0
    # Nothing is reported twice.
    assert not any(line.startswith("trial ") for line in done.stdout.splitlines())
    (trial,) = trials(server)
    with Client(server.address) as client:
        assert epochs(client, trial.id) == [1, 2, 3]
    (line,) = runs.history()
    assert (line["end_reason"], line["measured_by"], line["try"]) == ("target reached", "driver", 1)


def test_epochs_of_a_command_that_died_with_its_driver(runs: Runs, server: LiveServer) -> None:
    """What a killed driver could not report is reported by the next one."""
    first = f"if [ {{try}} = 1 ]; then {WAIT}; echo acc: 0.5; sleep 100; fi"
    job = job_of(runs, first, "echo acc: 0.95")
    driver = runs.start(job)
    folder = waits(runs)
    server.kill()
    (folder / "go").touch()
    wait_until(lambda: json.loads((folder / "measuring.json").read_text())["epochs"] != [])
    driver.kill()
    driver.wait()
    wait_until(lambda: is_abandoned(runs.path() / "launches/000000.json"))
    server.start()
    assert runs.run(job).returncode == 0
    assert [(trial.end_reason, trial.newest.metric) for trial in trials(server)] == [
        (v1.END_REASON_PREEMPTED, 0.5),
        (v1.END_REASON_TARGET_REACHED, 0.95),
    ]


@pytest.mark.parametrize("pattern", [r"acc: (\d+", r"acc: \d+\.\d+"])
def test_a_wrong_pattern_is_shown_as_it_was_written(pattern: str) -> None:
    """The error has the pattern of the job file, with single backslashes."""
    fault = fault_in(pattern, "metric")
    assert fault is not None
    assert f"is '{pattern}', which" in fault


def test_interrupted_driver_dispatches_no_trial(runs: Runs, server: LiveServer) -> None:
    """A driver that is interrupted after the server lost its database asks for no trial in its place."""
    driver = runs.start(job_of(runs, "echo acc: 0.5", WAIT))
    waits(runs)
    wait_until(lambda: trials(server)[0].newest.epoch == 1)
    with Client(server.address) as client:
        spec = client.get_job(JOB_ID).job.spec
    server.stop()
    server.lose_database()
    with LiveServer(server.database.parent) as aside:
        with Client(aside.start()) as client:
            client.register_job(spec)
        aside.stop()
    server.start()
    driver.send_signal(signal.SIGTERM)
    assert ended(driver).returncode == 128 + signal.SIGTERM
    assert trials(server) == []
