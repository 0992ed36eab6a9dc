"""What `wattwise run` checks before it launches anything."""

from __future__ import annotations

import ast
import os
import shutil
from pathlib import Path

import pytest
import wattwise
from wattwise import Client, GpuGroup, JobSpec
from wattwise.driver.preflight import REMEDIES, monitor_fault
from wattwise.errors import MonitorError, Remedy

from tests.client.driver.running import Runs, result, shell, write_job
from tests.client.monitor.nvml_stub import Machine
from tests.live_server import LiveServer

GPU = GpuGroup(gpu_model="Test GPU", count=1, max_power_watts_per_gpu=100.0)
_PYTHONS = ("monitor=", "GpuGroup(", "gpu_indices or")


def refusals(runs: Runs, job: Path, *options: str) -> list[str]:
    """The faults of a job file, the same from a dry run and from a run; nothing was launched."""
    dry, real = runs.run(job, "--dry-run", *options), runs.run(job, *options)
    assert (dry.returncode, real.returncode) == (2, 2)
    assert dry.stdout == ""
    assert dry.stderr == real.stderr
    assert runs.trial_folders() == []
    return dry.stderr.splitlines()


def test_program_and_monitor_that_are_missing(runs: Runs, machine: Machine) -> None:
    """Both are named at once; for the monitor, the message shows what to write in the job file."""
    machine.file.write_text("")
    program, monitor = refusals(runs, write_job(runs.folder, ["no-such-program"], run={"monitor": "nvml"}))
    assert "train.command: " in program
    assert "'no-such-program'" in program
    assert "run.monitor: " in monitor
    assert 'monitor = "estimate:150"' in monitor
    assert "monitor=" not in monitor


def test_program_that_may_not_be_executed(runs: Runs) -> None:
    """A script without the execute permission has its own message."""
    script = runs.folder / "train.sh"
    script.write_text("#!/bin/sh\n")
    (fault,) = refusals(runs, write_job(runs.folder, [str(script)]))
    assert f"train.command: {script} " in fault
    assert "chmod +x" in fault


def test_argument_that_is_too_long(runs: Runs) -> None:
    """An argument that Linux refuses is a fault of the job file, with its size; so is one of few placeholders."""
    for word in ("é" * 70_000, "{log_dir}" * 12_000):
        (fault,) = refusals(runs, write_job(runs.folder, ["true", word]))
        assert "bytes; an argument has 131,071 at most" in fault
        assert len(fault) < 500


def test_command_that_is_too_long(served: Runs) -> None:
    """A command whose arguments exceed Linux's limit for all of them together ends the run in one line."""
    word = "{log_dir}" * (100_000 // len(str(served.path() / "trial-0001")))
    done = served.run(write_job(served.folder, ["true", *[word] * 80]))
    assert (done.returncode, "Traceback" in done.stderr) == (1, False)
    assert "the command cannot be started: Argument list too long; shorten train.command" in done.stderr


def test_job_that_a_server_refuses(runs: Runs) -> None:
    """Faults that only a server finds are one line each, too."""
    job = write_job(runs.folder, shell(result()), job={"default_batch_size": 9, "eta_knob": 2.0})
    fields = [line.split(": ")[2] for line in refusals(runs, job)]
    assert fields == ["job.default_batch_size", "job.eta_knob"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--server", "nonsense"], "invalid server address 'nonsense'"),
        (["--server", "localhost:1", "--token-file", "/no/such/token"], "/no/such/token"),
    ],
)
def test_arguments_that_are_wrong(runs: Runs, options: list[str], message: str) -> None:
    """A malformed address or a missing token file is refused with status 2."""
    (line,) = refusals(runs, write_job(runs.folder, shell(result())), *options)
    assert message in line


def test_dry_run_leaves_nothing(runs: Runs) -> None:
    """A dry run prints the commands, with the monitor that was found, and leaves no folder and no job."""
    done = runs.run(write_job(runs.folder, ["true", "{seed}"], run={"monitor": "estimate:70"}), "--dry-run")
    assert done.returncode == 0
    assert "WATTWISE_MONITOR=estimate:70 \\" in done.stdout.splitlines()
    assert '"max_power_watts_per_gpu":70.0' in done.stdout
    assert done.stderr.startswith(f"# in {Path.cwd()}; N, ID and PORT ")
    assert not (runs.folder / "runs").exists()


def test_dry_run_shows_the_defaults_of_the_server(runs: Runs, server: LiveServer) -> None:
    """A number of epochs that the job leaves out is the one that a server fills in."""
    command = ["echo", "{target_metric}", "{max_epochs}"]
    done = runs.run(write_job(runs.folder, command, job={"max_epochs": None}), "--dry-run")
    with Client(server.address) as client:
        job = JobSpec(job_id="a", batch_sizes=[8], default_batch_size=8, target_metric=0.9, gpu=GPU)
        spec = client.register_job(job).job.spec
    lines = done.stdout.splitlines()
    assert lines.count(f"{shutil.which('echo')} {spec.target.value} {spec.max_epochs}") == 3
    assert f"WATTWISE_TARGET_METRIC={spec.target.value} \\" in lines
    assert f"WATTWISE_MAX_EPOCHS={spec.max_epochs} \\" in lines


def test_dry_run_without_the_packages_of_a_server(runs: Runs) -> None:
    """Without a server, its defaults are shown by name, and the output says what to install."""
    package = runs.folder / "packages" / "wattwise_server"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("import no_such_package")
    runs.environment["PYTHONPATH"] = str(package.parent)
    command = ["echo", "{target_metric}", "{max_epochs}"]
    done = runs.run(write_job(runs.folder, command, job={"max_epochs": None}), "--dry-run")
    assert done.returncode == 0
    assert done.stdout.splitlines().count(f"{shutil.which('echo')} 0.9 EPOCHS") == 3
    assert 'pip install "wattwise[run]"' in done.stderr


def test_remedies_are_in_the_terms_of_the_job_file() -> None:
    """Every remedy of a monitor's error has a text for job files, without Python arguments."""
    error = MonitorError("no GPU", *Remedy)
    assert all(word in str(error) for word in _PYTHONS)
    assert monitor_fault(error).startswith("no GPU; ")
    assert set(REMEDIES) == set(Remedy)
    assert not any(word in monitor_fault(error) for word in _PYTHONS)


def test_problems_name_no_arguments_of_python() -> None:
    """What monitors' errors say beside their remedies does not mention Python arguments."""
    texts = [
        node.value
        for file in Path(wattwise.__path__[0], "monitor").glob("*.py")
        for call in ast.walk(ast.parse(file.read_text()))
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "MonitorError"
        for node in ast.walk(call)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]
    assert texts
    assert not [text for text in texts if any(word in text for word in _PYTHONS)]


def test_arguments_of_any_bytes_are_measured(runs: Runs) -> None:
    """A folder whose name is not UTF-8 is part of an argument, and no fault."""
    folder = runs.folder / os.fsdecode(b"a\xff")
    folder.mkdir()
    (fault,) = refusals(runs, write_job(folder, ["no-such-program", "{log_dir}"]))
    assert "train.command: program 'no-such-program' is not found" in fault
