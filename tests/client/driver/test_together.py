"""Two drivers on one job."""

from __future__ import annotations

from wattwise import Client, v1

from tests.client.driver.running import JOB_ID, Runs, ended, result, shell, write_job
from tests.live_server import LiveServer
from tests.waiting import wait_until


def test_two_drivers_share_a_folder(runs: Runs) -> None:
    """Two drivers of one folder share its recurrences and its server; their trials run concurrently."""
    meet = "touch {log_dir}/../here-{recurrence}; until test -e {log_dir}/../here-1 -a -e {log_dir}/../here-2"
    job = write_job(runs.folder, shell(f"{meet}; do sleep 0.02; done", result()), run={"recurrences": 4})
    drivers = [runs.start(job), runs.start(job)]
    done = [ended(driver) for driver in drivers]
    assert [(one.returncode, one.stderr) for one in done] == [(0, ""), (0, "")]
    history = runs.history()
    assert sorted(line["recurrence"] for line in history) == [1, 2, 3, 4]
    assert sorted(line["trial"] for line in history) == [1, 2, 3, 4]
    assert sorted(line["seed"] for line in history) == [100, 101, 102, 103]
    assert all(any(f"recurrence {number} of" in one.stdout for number in (1, 2, 3, 4)) for one in done)


def test_two_drivers_on_two_machines(runs: Runs, server: LiveServer) -> None:
    """Drivers with separate folders share the job on the server: the second one gets a concurrent trial."""
    runs.environment["WATTWISE_SERVER"] = server.address
    flag = runs.folder / "go"
    command = shell(f"until test -e {flag}; do sleep 0.02; done", result())
    files = [
        write_job(runs.folder, command, name=f"{name}.toml", run={"recurrences": 1, "log_dir": name})
        for name in ("here", "there")
    ]
    drivers = [runs.start(file) for file in files]
    wait_until(lambda: len(list(runs.folder.glob(f"*/{JOB_ID}/trial-*/output.log"))) == 2)
    with Client(server.address) as client:
        kinds = [trial.pruning_gts.role for trial in client.trials(JOB_ID)]
    assert kinds == [v1.PRUNING_GTS_ROLE_EXPLORATION, v1.PRUNING_GTS_ROLE_CONCURRENT]
    flag.touch()
    assert [ended(driver).returncode for driver in drivers] == [0, 0]


def test_takeover_from_a_killed_driver(runs: Runs) -> None:
    """A waiting driver takes over the recurrence and the server of a driver that is killed."""
    flag, waits = runs.folder / "go", runs.folder / "waits"
    command = shell(f"test -e {flag} || {{{{ touch {waits}; sleep 100; }}}}", result())
    job = write_job(runs.folder, command, run={"recurrences": 1, "grace_seconds": 2})
    first = runs.start(job)
    wait_until(waits.exists)
    second = runs.start(job)
    assert second.stdout is not None
    assert any("waiting for other drivers" in line for line in second.stdout)
    flag.touch()
    first.kill()
    assert ended(second).returncode == 0
    assert [line["end_reason"] for line in runs.history()] == ["preempted", "target reached"]
