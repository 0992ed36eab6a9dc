"""Several processes with every trainer: who connects them, ranks that are missing, and processes of a library."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.trainers
os.environ.setdefault("KERAS_BACKEND", "torch")
for library in ("transformers", "lightning", "keras", "accelerate"):
    pytest.importorskip(library, reason=f"needs {library}: make test-trainers")

from wattwise import Client, v1

from tests.client.integrations.ranks import two_ranks
from tests.live_server import LiveServer

EPOCHS = 3
STEPS = {"with_huggingface": 4, "with_lightning": 4, "with_accelerate": 4, "with_keras": 8}
"""The steps of an epoch. Keras does not split the data over ranks; a program does."""


def trials(server: LiveServer, job_id: str) -> list[v1.Trial]:
    """The trials of a job, by number."""
    with Client(server.address) as client:
        return sorted(client.trials(job_id), key=lambda trial: trial.id.trial_number)


@pytest.mark.parametrize("how", ["program", "callback", "late"])
@pytest.mark.parametrize("trainer", STEPS)
def test_two_ranks(server: LiveServer, trainer: str, how: str) -> None:
    """Two processes share a trial and each batch, whoever connects them, and go on after one has been waited for."""
    assert two_ranks(trainer, server.address, how) == [str([8] * STEPS[trainer] * EPOCHS)] * 2
    (trial,) = trials(server, f"test-ranks-{trainer}")
    assert (trial.converged, trial.newest.epoch) == (True, EPOCHS)


@pytest.mark.parametrize("how", ["ddp", "ddp_spawn", "fit_attempts", "accelerate"])
def test_processes_that_a_library_starts(server: LiveServer, how: str) -> None:
    """Processes that Lightning or accelerate start without torchrun train one trial together."""
    launched(server, how).check_returncode()
    *missed, reached = trials(server, "test-launched")
    assert len(missed) == (how == "fit_attempts")
    assert (reached.converged, reached.newest.epoch) == (True, EPOCHS)


def test_processes_that_a_library_forks(server: LiveServer) -> None:
    """Forked processes cannot use the trial of their parent; the error says what can."""
    done = launched(server, "ddp_fork")
    assert done.returncode == 1
    assert "OperationOrderError" in done.stderr
    assert "torchrun" in done.stderr


def launched(server: LiveServer, how: str) -> subprocess.CompletedProcess[str]:
    """Runs a training whose library starts its processes."""
    command = [sys.executable, "-m", "tests.client.integrations.launched", how, server.address]
    root, environment = Path(__file__).parents[3], {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, check=False, cwd=root, env=environment, capture_output=True, text=True, timeout=120)
