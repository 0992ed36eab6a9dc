"""Trainings with Keras that are killed and continued."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

# Keras saves a model with a call that NumPy deprecates.
pytestmark = [pytest.mark.trainers, pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")]
os.environ["KERAS_BACKEND"] = "torch"
pytest.importorskip("keras", reason="needs Keras: make test-trainers")

from wattwise import Client

from tests.client.integrations.keras_resume import SITUATIONS, job_id, train
from tests.client.training.script import read_line
from tests.live_server import LiveServer

MODULE = "tests.client.integrations.keras_resume"


def check(server: LiveServer, folder: Path, name: str, ranks: int = 1) -> None:
    """Checks that the one trial of the job is what the situation leads to, and that its state is gone."""
    with Client(server.address) as client:
        (trial,) = client.list_trials(job_id(name, ranks))
    situation = SITUATIONS[name]
    assert (trial.converged, trial.last_epoch) == (True, situation.epochs)
    assert trial.energy_joules == pytest.approx(situation.energy)
    assert not (folder / "wattwise.json").exists()


def nothing() -> None:
    """Does nothing."""


@pytest.mark.parametrize("name", SITUATIONS)
def test_killed_training_continues_its_trial(grpc_server: LiveServer, tmp_path: Path, name: str) -> None:
    """A training that is killed continues its trial, with all energy that has led to its model, and no epoch twice."""
    folder = tmp_path / "backup"
    folder.mkdir()
    command = [sys.executable, "-m", MODULE, grpc_server.address, folder, name]
    root, pipe = Path(__file__).parents[3], subprocess.PIPE
    with subprocess.Popen(command, cwd=root, stdin=pipe, stdout=pipe, text=True) as process:
        try:
            assert read_line(process) == "stopped"
        finally:
            process.kill()
    train(grpc_server.address, folder, name, nothing)
    check(grpc_server, folder, name)
