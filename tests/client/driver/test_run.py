"""A whole run: real drivers, real servers, real commands."""

from __future__ import annotations

import json
import re
import signal

import pytest
from wattwise import Client, v1
from wattwise.driver.folder import ADVICE
from wattwise_server.errors import other_job

from tests.client.driver.running import JOB_ID, PYTHON, Runs, ended, result, servers_of, shell, with_client, write_job
from tests.live_server import LiveServer
from tests.waiting import wait_until


def trials(server: LiveServer, job_id: str = JOB_ID) -> list[v1.Trial]:
    """The run's trials on the server."""
    with Client(server.address) as client:
        return list(client.trials(job_id))


def test_job_recurs_with_its_own_server(runs: Runs) -> None:
    """Every recurrence reaches the target, each trial is in the history, and the summary has the server's claim."""
    job = write_job(runs.folder, with_client("well"), train={"optimizer": "adamw", "default_learning_rate": 0.01})
    done = runs.run(job)
    assert (done.returncode, done.stderr) == (0, "")
    first, second = runs.history()
    assert (first["recurrence"], first["try"], first["trial"], first["batch_size"]) == (1, 1, 1, 16)
    assert (first["reached"], first["exit_code"], first["epochs"]) == (True, 0, 2)
    assert (first["end_reason"], first["measured_by"]) == ("target reached", "command")
    assert (second["recurrence"], second["batch_size"], second["seed"]) == (2, 8, first["seed"] + 1)
    assert second["learning_rate"] == pytest.approx(0.01 * 0.5**0.5)
    assert first["cost"] == pytest.approx(100 * first["time_seconds"])
    assert all(fact in done.stdout for fact in ("2 recurrences", "2 trials", "not measured"))
    # Which one depends on how long the trials took; a single run of the default shows no saving.
    claim = r"^Compared with the default batch size: A model costs .* now.*Exploring: "
    assert re.search(claim, " ".join(done.stdout.split()).replace("Compared", "\nCompared"), re.MULTILINE)
    serve = f"run `wattwise serve --database sqlite:///{runs.path() / 'wattwise.db'}`"
    assert serve in " ".join(done.stdout.split())
    assert (runs.path() / "trial-0001" / "output.log").read_text() == "batch size 16\nepoch 1\n"
    assert list((runs.path() / "launches").iterdir()) == []
    assert servers_of(runs.path()) == []


def test_finished_run(runs: Runs, server: LiveServer) -> None:
    """A finished run launches nothing; more recurrences continue it, and --fresh starts a new one."""
    runs.environment["WATTWISE_SERVER"] = server.address
    one = write_job(runs.folder, shell(result()), run={"recurrences": 1}, name="one.toml")
    two = write_job(runs.folder, shell(result()), name="two.toml")
    assert [runs.run(one).returncode, runs.run(one).returncode] == [0, 0]
    assert len(runs.history()) == 1
    assert runs.run(two).returncode == 0
    assert [line["recurrence"] for line in runs.history()] == [1, 2]
    assert runs.run(one, "--fresh").returncode == 0
    assert [line["trial"] for line in runs.history(f"{JOB_ID}-2")] == [1]
    assert runs.run(two).returncode == 0
    assert (len(runs.history()), len(runs.history(f"{JOB_ID}-2"))) == (2, 2)


def test_command_without_a_client_is_measured_by_the_driver(runs: Runs, server: LiveServer) -> None:
    """A command without a client reports by result.json; time and energy are those of its whole execution."""
    runs.environment["WATTWISE_SERVER"] = server.address
    job = write_job(runs.folder, shell("sleep 0.3", result(0.97, 3)), run={"recurrences": 1})
    assert runs.run(job).returncode == 0
    (trial,) = trials(server)
    assert (trial.end_reason, trial.newest.epoch, trial.newest.metric) == (v1.END_REASON_TARGET_REACHED, 3, 0.97)
    assert trial.newest.time_seconds > 0.3
    assert trial.newest.energy_joules == pytest.approx(100 * trial.newest.time_seconds)
    (line,) = runs.history()
    assert (line["measured_by"], line["time_seconds"]) == ("driver", trial.newest.time_seconds)
    assert not (runs.path() / "wattwise.db").exists()


def test_placeholders_and_variables(runs: Runs, server: LiveServer) -> None:
    """Placeholders and variables have the same values; the driver's own variables are not passed on."""
    runs.environment["WATTWISE_SERVER"] = server.address
    names = ("batch_size", "learning_rate", "seed", "recurrence", "try", "target_metric", "max_epochs", "log_dir")
    placeholders = [f"{{{name}}}" for name in names]
    write = f"import os, sys, json; json.dump([sys.argv[1:], dict(os.environ)], open('{runs.folder}/received', 'w'))"
    job = write_job(
        runs.folder,
        ["sh", "-c", f'{PYTHON} -c "$0" "$@"; ' + result(), write, *placeholders, "{{x}}"],
        train={"optimizer": "sgd", "default_learning_rate": 0.1},
        run={"recurrences": 1, "observer_mode": True, "step_watts": 12.5, "profile_measure_iters": 1234567},
    )
    runs.environment |= {"WATTWISE_TOKEN": "", "WATTWISE_DATABASE": "sqlite:///elsewhere.db"}
    assert runs.run(job).returncode == 0
    words, variables = json.loads((runs.folder / "received").read_text())
    log_dir = str(runs.path() / "trial-0001")
    assert words == ["16", "0.1", "100", "1", "1", "0.9", "3", log_dir, "{x}"]
    assert [variables[f"WATTWISE_{name.upper()}"] for name in names] == words[:-1]
    assert (variables["WATTWISE_TRIAL_NUMBER"], variables["WATTWISE_JOB_ID"]) == ("1", JOB_ID)
    assert (variables["WATTWISE_OBSERVER_MODE"], variables["WATTWISE_PROFILE_STEP_WATTS"]) == ("1", "12.5")
    assert variables["WATTWISE_PROFILE_MEASURE_ITERS"] == "1234567"
    assert variables["WATTWISE_MONITOR"] == "estimate:100"
    assert "WATTWISE_PROFILE_WARMUP_ITERS" not in variables
    assert "WATTWISE_DATABASE" not in variables


@pytest.mark.parametrize(
    ("command", "end_reason", "exit_code"),
    [
        (with_client("error"), v1.END_REASON_ERROR, 7),
        (with_client("out-of-memory"), v1.END_REASON_OUT_OF_MEMORY, 1),
        (with_client("killed"), v1.END_REASON_ERROR, 137),
        (shell("exit 3"), v1.END_REASON_ERROR, 3),
        (shell(result(0.1)), v1.END_REASON_STOPPED_EARLY, 0),
        (shell(result(0.1, epochs=3)), v1.END_REASON_MAX_EPOCHS, 0),
    ],
)
def test_exit_becomes_the_end_reason(
    runs: Runs, server: LiveServer, command: list[str], end_reason: v1.EndReason.ValueType, exit_code: int
) -> None:
    """The exit status determines the trial's end reason; if the default batch size fails, the run ends."""
    runs.environment["WATTWISE_SERVER"] = server.address
    done = runs.run(write_job(runs.folder, command))
    assert done.returncode == 1
    assert "default batch size 16" in done.stderr
    advice = {
        v1.END_REASON_MAX_EPOCHS: "an easier target",
        v1.END_REASON_OUT_OF_MEMORY: "smaller batch sizes",
    }
    assert advice.get(end_reason, "ix the command") in done.stderr
    assert [trial.end_reason for trial in trials(server)] == [end_reason]
    (line,) = runs.history()
    assert (line["exit_code"], line["reached"]) == (exit_code, False)


def test_default_that_does_not_fit(runs: Runs, server: LiveServer) -> None:
    """If memory runs out with the default batch size, the same command goes on with smaller ones, as the error says."""
    runs.environment["WATTWISE_SERVER"] = server.address
    job = write_job(runs.folder, with_client("too-large"), run={"recurrences": 1})
    refused = runs.run(job)
    assert refused.returncode == 1
    assert "Run this again to go on with smaller batch sizes" in refused.stderr
    assert runs.run(job).returncode == 0
    assert [(line["batch_size"], line["end_reason"]) for line in runs.history()] == [
        (16, "out of memory"),
        (8, "target reached"),
    ]


@pytest.mark.parametrize(
    ("end", "shown"),
    [
        (
            "kill -KILL $$",
            "status 137 (killed by SIGKILL, perhaps by the kernel because memory ran out)",
        ),
        pytest.param("kill -SEGV $$", "status 139 (ended by SIGSEGV)", marks=pytest.mark.thorough),
        pytest.param("kill -TERM $$", "status 143 (ended by SIGTERM)", marks=pytest.mark.thorough),
        ("exit 200", "status 200;"),
    ],
)
def test_status_of_a_signal_is_explained(runs: Runs, server: LiveServer, end: str, shown: str) -> None:
    """The error that ends a run says in its line what a status above 128 means."""
    runs.environment["WATTWISE_SERVER"] = server.address
    done = runs.run(write_job(runs.folder, shell(end), run={"max_tries": 1}))
    assert done.returncode == 1
    assert shown in done.stderr


@pytest.mark.parametrize(
    ("end", "exit_code"),
    [
        ("kill -TERM $$", 143),
        ("exit 130", 130),
        pytest.param("kill -INT $$", 130, marks=pytest.mark.thorough),
        pytest.param("kill -HUP $$", 129, marks=pytest.mark.thorough),
        pytest.param("exit 129", 129, marks=pytest.mark.thorough),
    ],
)
def test_terminated_command_is_launched_again(runs: Runs, server: LiveServer, end: str, exit_code: int) -> None:
    """A terminated command was preempted: its recurrence has another try, which does not count towards max_tries."""
    runs.environment["WATTWISE_SERVER"] = server.address
    flag = runs.folder / "second"
    command = shell(f"test -e {flag} || {{{{ touch {flag}; {end}; }}}}", result())
    done = runs.run(write_job(runs.folder, command, run={"recurrences": 1, "max_tries": 2}))
    assert (done.returncode, done.stderr) == (0, "")
    assert [(line["try"], line["end_reason"], line["exit_code"]) for line in runs.history()] == [
        (1, "preempted", exit_code),
        (2, "target reached", 0),
    ]


def test_end_reason_of_a_client_is_kept(runs: Runs, server: LiveServer) -> None:
    """A trial that its client ended as preempted stays so, whatever the exit status, and has another try."""
    runs.environment["WATTWISE_SERVER"] = server.address
    done = runs.run(write_job(runs.folder, with_client("preempted-once"), run={"recurrences": 1}))
    assert (done.returncode, done.stderr) == (0, "")
    assert [trial.end_reason for trial in trials(server)] == [v1.END_REASON_PREEMPTED, v1.END_REASON_TARGET_REACHED]
    assert [(line["end_reason"], line["exit_code"]) for line in runs.history()] == [
        ("preempted", 1),
        ("target reached", 0),
    ]


def test_client_that_reports_nothing(runs: Runs, server: LiveServer) -> None:
    """A command that joins only for its batch size and writes result.json is reported once, by the driver."""
    runs.environment["WATTWISE_SERVER"] = server.address
    assert runs.run(write_job(runs.folder, with_client("silent"), run={"recurrences": 1})).returncode == 0
    (trial,) = trials(server)
    assert (trial.end_reason, trial.newest.epoch) == (v1.END_REASON_TARGET_REACHED, 2)
    (line,) = runs.history()
    assert (line["measured_by"], line["time_seconds"]) == ("driver", trial.newest.time_seconds)


def test_monitor_of_the_command(runs: Runs, server: LiveServer) -> None:
    """A client's own monitor is shown, even if the driver's monitor is an estimate."""
    runs.environment["WATTWISE_SERVER"] = server.address
    job = write_job(runs.folder, with_client("own-monitor"), run={"recurrences": 1})
    done = runs.run(job)
    assert (done.returncode, [line["monitor"]["kinds"] for line in runs.history()]) == (0, [["rack"]])
    assert "~" not in done.stdout


def test_estimate_is_marked(runs: Runs, server: LiveServer) -> None:
    """Estimated joules are marked in every row and sum."""
    runs.environment["WATTWISE_SERVER"] = server.address
    done = runs.run(write_job(runs.folder, shell(result()), run={"recurrences": 1}))
    assert [(line["monitor"]["kinds"], line["monitor"]["quality"]) for line in runs.history()] == [
        (["estimate"], "estimated")
    ]
    (row,) = (line for line in done.stdout.splitlines() if line.startswith("recurrence 1, "))
    assert row.count("~") == 2
    assert "(partly" not in done.stdout


@pytest.mark.thorough
def test_command_that_always_ends_as_preempted(runs: Runs) -> None:
    """After max_tries preemptions in a row the run ends with an error; started again, it continues."""
    job = write_job(runs.folder, shell("exit 143"), run={"max_tries": 2})
    done = runs.run(job)
    assert done.returncode == 1
    assert all(fact in done.stderr for fact in ("recurrence 1 ", "max_tries = 2", "status 143"))
    assert [line["end_reason"] for line in runs.history()] == ["preempted"] * 2
    assert runs.run(job).returncode == 1
    assert len(runs.history()) == 4


def test_advice_against_missed_targets() -> None:
    """The driver and the server give the same advice."""
    assert other_job({"missed": [8]}) == ADVICE


def test_failed_tries_end_the_run(runs: Runs, server: LiveServer) -> None:
    """After max_tries failed trials of a recurrence, the error has their end reasons and what to change."""
    runs.environment["WATTWISE_SERVER"] = server.address
    only_16 = f"if [ {{batch_size}} = 16 ]; then {result()}; else exit 9; fi"
    done = runs.run(write_job(runs.folder, shell(only_16), run={"max_tries": 2}))
    assert done.returncode == 1
    assert all(fact in done.stderr for fact in ("recurrence 2 ", "max_tries = 2", "error (2)", "raise max_tries"))


def test_exhausted_job_of_an_own_server(runs: Runs) -> None:
    """When no batch size is left, the error names the command that resets the job, and the one that serves it."""
    only_first = f'if [ "$WATTWISE_TRIAL_NUMBER" = 1 ]; then {result()}; else {result(0.1, 3)}; fi'
    job = {"batch_sizes": [16], "num_pruning_rounds": 2}
    done = runs.run(write_job(runs.folder, shell(only_first), job=job))
    assert done.returncode == 1
    assert f"`wattwise jobs reset {JOB_ID}`" in done.stderr
    assert f"`wattwise serve --database sqlite:///{runs.path() / 'wattwise.db'}`" in done.stderr


def test_changed_job_is_refused(runs: Runs, server: LiveServer) -> None:
    """A changed job under the job id of a run is refused; the error names the field and its value."""
    runs.environment["WATTWISE_SERVER"] = server.address
    assert runs.run(write_job(runs.folder, shell(result()))).returncode == 0
    done = runs.run(write_job(runs.folder, shell(result()), job={"target_metric": 0.5}, run={"recurrences": 3}))
    assert done.returncode == 2
    assert "target_metric" in done.stderr
    assert "0.9" in done.stderr


def test_prices_of_a_run(runs: Runs, server: LiveServer) -> None:
    """The run registers, prints and passes on the eta of its prices on the monitor's GPUs; changed ones are refused."""
    runs.environment["WATTWISE_SERVER"] = server.address
    prices = {"energy_price_per_kwh": 0.4, "gpu_hour_price": 0.06}
    job = write_job(runs.folder, with_client("well"), job=prices, run={"recurrences": 1})
    dry = runs.run(job, "--dry-run")
    assert (dry.returncode, dry.stdout.count('"eta_knob":0.4,')) == (0, 3)
    assert "eta_knob=0.4 is computed from energy_price_per_kwh=0.4 and gpu_hour_price=0.06" in dry.stderr
    done = runs.run(job)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("eta_knob=0.4 is computed from") == 1
    with Client(server.address) as client:
        assert client.get_job(JOB_ID).job.spec.eta_knob == 0.4
    (line,) = runs.history()
    assert (line["measured_by"], line["reached"]) == ("command", True)
    changed = runs.run(write_job(runs.folder, with_client("well"), job=prices | {"gpu_hour_price": 0}))
    assert (changed.returncode, changed.stderr.count("\n")) == (2, 1)
    assert "eta_knob: registered 0.4, requested 1.0" in changed.stderr
    assert "gpu_hour_price=0.0" in changed.stderr


def test_command_over_its_cost_bound_is_stopped(runs: Runs, server: LiveServer) -> None:
    """A command without a client is stopped when its cost, as the driver reports it, exceeds the bound."""
    runs.environment["WATTWISE_SERVER"] = server.address
    slow = f"if [ {{recurrence}}{{try}} = 21 ]; then sleep 50; fi; {result()}"
    job = {"beta_knob": 40.0, "trial_lease_seconds": 1.0}
    done = runs.run(write_job(runs.folder, shell(slow), job=job))
    assert (done.returncode, done.stderr) == (0, "")
    _, stopped, _ = runs.history()
    assert (stopped["end_reason"], stopped["reached"], stopped["measured_by"]) == ("cost bound", False, "driver")
    assert stopped["exit_code"] == 128 + signal.SIGTERM
    assert stopped["time_seconds"] < 20


def test_lease_is_kept_for_a_command_without_a_client(runs: Runs, server: LiveServer) -> None:
    """While a command without a client runs, its driver renews the trial's lease."""
    runs.environment["WATTWISE_SERVER"] = server.address
    flag = runs.folder / "go"
    job = {"trial_lease_seconds": 1.0}
    wait = f"until test -e {flag}; do sleep 0.02; done"
    driver = runs.start(write_job(runs.folder, shell(wait, result()), job=job, run={"recurrences": 1}))
    wait_until(lambda: len(runs.trial_folders()) == 1)
    expiries = set()

    def renewed() -> bool:
        (trial,) = trials(server)
        expiries.add(trial.lease_expire_time.ToNanoseconds())
        return len(expiries) > 3

    wait_until(renewed)
    flag.touch()
    assert ended(driver).returncode == 0
    assert [line["end_reason"] for line in runs.history()] == ["target reached"]


def test_deleted_job_ends_the_command(runs: Runs, server: LiveServer) -> None:
    """Deleting the job ends a command without a client and the run; the next start registers the job again.

    The launch whose trial was deleted is forgotten: the launches of the next start are new ones.
    """
    runs.environment["WATTWISE_SERVER"] = server.address
    started = runs.folder / "started"
    driver = runs.start(write_job(runs.folder, shell(f"touch {started}", "sleep 60"), job={"trial_lease_seconds": 1.0}))
    wait_until(started.exists)
    with Client(server.address) as client:
        client.delete_job(JOB_ID)
    _, errors = driver.communicate(timeout=30)
    assert driver.returncode == 1
    assert JOB_ID in errors
    assert runs.run(write_job(runs.folder, shell(result()), job={"trial_lease_seconds": 1.0})).returncode == 0
    assert [line["end_reason"] for line in runs.history()] == ["target reached", "target reached"]


@pytest.mark.thorough
def test_another_server_than_before_is_said(runs: Runs, server: LiveServer) -> None:
    """A run that goes on with another server than that of its trials says so, in both directions."""
    job = write_job(runs.folder, shell(result()), run={"recurrences": 1})
    first = runs.run(job)
    assert (first.returncode, "WARNING" in first.stdout) == (0, False)
    more = write_job(runs.folder, shell(result()), run={"recurrences": 2})
    other = runs.run(more, "--server", server.address)
    assert other.returncode == 0
    (warning,) = (line for line in other.stdout.splitlines() if "WARNING" in line)
    assert "reported to its own server so far" in warning
    assert server.address in warning
    assert "--fresh" in warning
    again = runs.run(more, "--server", server.address.replace("127.0.0.1", "localhost"))
    assert "WARNING" not in again.stdout
    back = runs.run(more)
    assert f"reported to {server.address} so far" in back.stdout
    fresh = runs.run(more, "--fresh", "--server", server.address)
    assert "WARNING" not in fresh.stdout
