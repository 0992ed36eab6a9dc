"""What a launch says about itself."""

from __future__ import annotations

import socket

import pytest
from wattwise import BatchSizeOptimizer, v1
from wattwise.rpc.calls import trial_id
from wattwise.rpc.labels import launch_labels

from tests.client.training.script import StepMonitor, job_spec
from tests.live_server import LiveServer

VARIABLE = "WATTWISE_LABELS"


@pytest.fixture(autouse=True)
def _no_batch_job(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (VARIABLE, "SLURM_JOB_ID"):
        monkeypatch.delenv(name, raising=False)


def test_labels_are_the_host_and_those_of_the_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    """The host alone without variables; labels of a user come last and may replace it."""
    assert launch_labels() == {"host": socket.gethostname()}
    monkeypatch.setenv("SLURM_JOB_ID", "4711")
    monkeypatch.setenv(VARIABLE, " commit = 5f0c2a9 ,empty=, note=a=b")
    assert launch_labels() == {
        "host": socket.gethostname(),
        "slurm_job_id": "4711",
        "commit": "5f0c2a9",
        "empty": "",
        "note": "a=b",
    }
    monkeypatch.setenv(VARIABLE, "host=node-7")
    assert launch_labels()["host"] == "node-7"


@pytest.mark.parametrize("text", ["commit", "=5f0c2a9", "k" * 64 + "=v", "key=" + "v" * 201, "key=a\tb"])
def test_label_that_the_server_would_refuse_is_left_out(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, text: str
) -> None:
    """It is named in a warning, and the others are sent: no launch fails for a label."""
    monkeypatch.setenv(VARIABLE, f"{text},kept=yes")
    assert launch_labels() == {"host": socket.gethostname(), "kept": "yes"}
    assert [VARIABLE in record.getMessage() for record in caplog.records] == [True]


def test_there_are_at_most_sixteen(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """What comes after the sixteenth is ignored with a warning; a key that is there already is replaced."""
    monkeypatch.setenv(VARIABLE, ",".join(f"key-{number}={number}" for number in range(16)) + ",key-3=new")
    labels = launch_labels()
    assert (len(labels), labels["key-3"], "key-15" in labels) == (16, "new", False)
    assert len(caplog.records) == 1


def test_trial_shows_where_it_runs(server: LiveServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """The labels of a launch are with its trial."""
    monkeypatch.setenv(VARIABLE, "commit=5f0c2a9")
    with BatchSizeOptimizer(server.address, job_spec(), monitor=StepMonitor()) as bso:
        bso.get_batch_size()
        trial = server.admin.GetTrial(v1.GetTrialRequest(trial=trial_id(bso.trial))).trial
        assert dict(trial.labels) == {"host": socket.gethostname(), "commit": "5f0c2a9"}
