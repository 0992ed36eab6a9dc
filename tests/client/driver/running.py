"""Runs for tests: job files, drivers as processes, and the files that they leave."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from tests.forking import ForkedProcess

HOUSE = Path(__file__).parents[3]
PYTHON = sys.executable
JOB_ID = "test-run"
Driver: TypeAlias = "subprocess.Popen[str] | ForkedProcess"

JOB: dict[str, Any] = {
    "job_id_prefix": "test",
    "job_id": JOB_ID,
    "batch_sizes": [8, 16, 32],
    "default_batch_size": 16,
    "target_metric": 0.9,
    "max_epochs": 3,
    "beta_knob": "off",
    "num_pruning_rounds": 1,
    "seed": 1,
    "policy": "pruning_gts",
}
RUN: dict[str, Any] = {"recurrences": 2, "max_tries": 3, "seed": 100, "monitor": "estimate:100", "grace_seconds": 5}


def result(metric: float = 0.95, epochs: int = 2) -> str:
    """A shell step by which a command without a client writes its result."""
    return f'echo \'{{{{"metric": {metric}, "epochs": {epochs}}}}}\' > {{log_dir}}/result.json'


def shell(*steps: str) -> list[str]:
    """A shell command."""
    return ["sh", "-c", "; ".join(steps)]


def with_client(end: str) -> list[str]:
    """A command with a client in it; see `tests/client/driver/trainer.py`."""
    return [PYTHON, "-m", "tests.client.driver.trainer", end]


def write_job(folder: Path, command: list[str], *, name: str = "job.toml", **changes: Any) -> Path:
    """A job file; `job`, `train` and `run` update the usual tables, and None removes a key."""
    tables = {
        "job": JOB | changes.get("job", {}),
        "train": {"command": command, "workdir": str(HOUSE)} | changes.get("train", {}),
        "run": RUN | changes.get("run", {}),
    }
    path = folder / name
    lines = []
    for table, values in tables.items():
        lines += [f"[{table}]", *(f"{key} = {json.dumps(value)}" for key, value in values.items() if value is not None)]
    path.write_text("\n".join(lines))
    return path


@dataclass
class Runs:
    """Drivers in one folder, which end with their test."""

    folder: Path
    environment: dict[str, str] = field(default_factory=dict)
    started: list[Driver] = field(default_factory=list)

    def start(self, job_file: Path, *options: str) -> Driver:
        """Starts a driver."""
        kept = {k: v for k, v in os.environ.items() if not k.startswith("WATTWISE_") or k == "WATTWISE_SPOOL"}
        environment = kept | self.environment
        driver: Driver
        if all(name.startswith("WATTWISE_") for name in self.environment):
            driver = ForkedProcess("run", str(job_file), *options, environment=environment)
        else:
            # They may be for the dynamic linker or for imports.
            command = [PYTHON, "-m", "wattwise", "run", str(job_file), *options]
            pipe = subprocess.PIPE
            driver = subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=environment)
        self.started.append(driver)
        return driver

    def run(self, job_file: Path, *options: str) -> subprocess.CompletedProcess[str]:
        """Runs a driver to its end."""
        return ended(self.start(job_file, *options))

    def history(self, job_id: str = JOB_ID) -> list[dict[str, Any]]:
        """The lines of the run's history."""
        path = self.path(job_id) / "history.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def path(self, job_id: str = JOB_ID) -> Path:
        """The run's folder."""
        return self.folder / "runs" / job_id

    def trial_folders(self) -> list[Path]:
        """The folders of the trials that have started."""
        return sorted(self.path().glob("trial-????"))

    def close(self) -> None:
        """Kills the drivers."""
        for driver in self.started:
            driver.kill()
            driver.communicate(timeout=30)


def ended(driver: Driver) -> subprocess.CompletedProcess[str]:
    """Waits for a driver's end."""
    out, err = driver.communicate(timeout=60)
    return subprocess.CompletedProcess(driver.args, driver.wait(), out, err)


def alive(pid: int) -> bool:
    """Whether a process runs; a zombie does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state not in {"Z", "X"}


def servers_of(folder: Path) -> list[int]:
    """The server processes of a run."""
    found = []
    for entry in Path("/proc").iterdir():
        with suppress(OSError):
            words = (entry / "cmdline").read_bytes().split(b"\0") if entry.name.isdecimal() else []
            if words[1:3] == [b"-m", b"wattwise_server"] and str(folder).encode() in b" ".join(words):
                found.append(int(entry.name))
    return found
