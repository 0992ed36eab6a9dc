"""`BatchSizeOptimizer.from_env()`: a command joins its driver's trial."""

from __future__ import annotations

import json
import logging
import os
import subprocess
from pathlib import Path

import pytest
from wattwise import BatchSizeOptimizer, Client, EstimateMonitor, v1
from wattwise.errors import JobDiffersError, NoDriverError, ResumeError, TrainFailError, TrialDeletedError
from wattwise.rpc.calls import trial_id
from wattwise.training import spool as spool_module
from wattwise.training.assigned import spec_to_json
from wattwise.training.journal import Journal, TrialRecord
from wattwise.training.resume import SavedTrial, Sums
from wattwise.training.session import Session
from wattwise.training.spool import Spool

from tests.client.driver.running import PYTHON, Runs, ended, with_client, write_job
from tests.client.rpc.middlebox import Middlebox
from tests.client.training.script import JOULES, StepMonitor, epochs, job_spec, record_of, started
from tests.live_server import LiveServer
from tests.waiting import wait_until


@pytest.fixture
def requested(server: LiveServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> v1.Trial:
    """The driver's trial, with its variables in the environment."""
    spec = job_spec()
    with Client(server.address) as client:
        client.register_job(spec)
        trial = client.get_next_batch_size(spec.job_id, launch_id="the-driver's").trial
    values = {
        "SERVER": server.address,
        "JOB_SPEC": spec_to_json(spec),
        "LAUNCH_ID": "the-driver's",
        "TRIAL_NUMBER": "1",
        "BATCH_SIZE": "16",
        "LOG_DIR": str(tmp_path),
        "REASON": "the reason of the first answer",
        "MONITOR": "estimate:50",
    }
    for name, value in values.items():
        monkeypatch.setenv(f"WATTWISE_{name}", value)
    return trial


def test_trial_is_joined(requested: v1.Trial, server: LiveServer, tmp_path: Path) -> None:
    """The command trains the driver's trial, and records in client.json that it has joined."""
    with BatchSizeOptimizer.from_env(monitor=StepMonitor()) as bso:
        assert bso.get_batch_size() == 16
        assert (trial_id(bso.trial), bso.trial.reason) == (requested.id, "the reason of the first answer")
        assert json.loads((tmp_path / "client.json").read_text()) == {"joined": True}
        bso.on_train_begin()
        bso.on_evaluate(0.95)
        assert bso.training_finished
    with Client(server.address) as client:
        (trial,) = client.trials(requested.id.job_id)
    assert (trial.end_reason, trial.newest.epoch) == (v1.END_REASON_TARGET_REACHED, 1)


def test_second_optimizer_of_a_launch(
    requested: v1.Trial, server: LiveServer, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It shares the trial and its journal without waiting for a lock or a warning, also after the first has ended."""

    def waits(_path: Path) -> None:
        pytest.fail("a journal of this process is waited for")

    first = BatchSizeOptimizer.from_env(monitor=StepMonitor())
    first.get_batch_size()
    monkeypatch.setattr(spool_module, "_taken_over", waits)
    with BatchSizeOptimizer.from_env(monitor=StepMonitor()) as second:
        assert second.get_batch_size() == 16
        second.on_train_begin()
        second.on_evaluate(0.1)
        first.close()
        server.kill()
        second.on_evaluate(0.2)
        (path,) = Spool.from_env().paths()
        assert len(TrialRecord.from_lines(path.read_text().splitlines()).results) == 2
        server.start()
        second.on_evaluate(0.95)
        assert second.target_reached
    with Client(server.address) as client:
        assert epochs(client, requested.id) == [1, 2, 3]
    assert Spool.from_env().paths() == []
    assert not [message for message in caplog.messages if "journal" in message or "spool" in message]


def test_monitor_is_that_of_the_driver(requested: v1.Trial, server: LiveServer) -> None:
    """Without `monitor=`, the command uses the driver's monitor."""
    with BatchSizeOptimizer.from_env() as bso:
        bso.get_batch_size()
        bso.on_train_begin()
        bso.on_evaluate(0.95)
    with Client(server.address) as client:
        trial = client.get_trial(requested.id).trial
    assert trial.newest.energy_joules == pytest.approx(50 * trial.newest.time_seconds)


def test_checkpoint_of_an_earlier_launch(requested: v1.Trial, server: LiveServer) -> None:
    """A trial of an earlier launch, which no driver would end, cannot be resumed."""
    with Client(server.address) as client:
        client.end_trial(requested.id, v1.END_REASON_PREEMPTED)
    saved = SavedTrial.of(requested, Sums(1, 1.0, 1.0)).state()
    message = r"trial 1: .* without the checkpoint"
    with BatchSizeOptimizer.from_env(monitor=StepMonitor()) as bso, pytest.raises(ResumeError, match=message):
        bso.load_state_dict(saved)
    with Client(server.address) as client:
        assert client.get_trial(requested.id).trial.end_reason == v1.END_REASON_PREEMPTED


def test_undecided_trial_is_left_to_the_driver(requested: v1.Trial, server: LiveServer) -> None:
    """A process does not end an undecided trial, because its driver knows the exit status."""
    bso = BatchSizeOptimizer.from_env(monitor=StepMonitor())
    bso.get_batch_size()
    bso.on_train_begin()
    bso.on_evaluate(0.5)
    bso.close()
    with Client(server.address) as client:
        trial = client.get_trial(requested.id).trial
    assert (trial.status, trial.newest.epoch) == (v1.TRIAL_STATUS_RUNNING, 1)


def test_second_optimizer_shares_the_trial(requested: v1.Trial, server: LiveServer) -> None:
    """A helper that asks for the batch size does not end the trial of the optimizer that trains."""
    helper = BatchSizeOptimizer.from_env(monitor=StepMonitor())
    assert helper.get_batch_size() == requested.batch_size
    bso = BatchSizeOptimizer.from_env(monitor=StepMonitor())
    for _ in bso.epochs():
        bso.on_evaluate(0.95)
    assert bso.target_reached
    with Client(server.address) as client:
        assert client.get_trial(requested.id).trial.end_reason == v1.END_REASON_TARGET_REACHED
    helper.close()


def test_server_that_is_away_at_the_start(
    requested: v1.Trial, server: LiveServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The driver's batch size is known without the server, which gets the measurements when it is back."""
    server.kill()
    bso = BatchSizeOptimizer.from_env(monitor=StepMonitor(), timeout=0.0)
    assert (bso.get_batch_size(), bso.trial.fallback, trial_id(bso.trial)) == (16, False, requested.id)
    assert bso.trial.reason == "the reason of the first answer"
    assert json.loads((tmp_path / "client.json").read_text()) == {"joined": True}
    bso.on_train_begin()
    bso.on_evaluate(0.1)
    server.start()
    with Client(server.address) as client:
        wait_until(lambda: client.get_trial(requested.id).trial.newest.epoch == 1)
        bso.on_evaluate(0.95)
        bso.close()
        assert client.get_trial(requested.id).trial.end_reason == v1.END_REASON_TARGET_REACHED
    assert len([each for each in caplog.records if each.levelname == "WARNING"]) == 1


@pytest.mark.usefixtures("requested")
def test_server_that_is_away_when_a_second_process_starts(server: LiveServer, caplog: pytest.LogCaptureFixture) -> None:
    """The epochs of an earlier process of the command are not reported again, and their sums are carried on."""
    caplog.set_level(logging.INFO, logger="wattwise")
    first = BatchSizeOptimizer.from_env(monitor=StepMonitor())
    first.get_batch_size()
    first.on_train_begin()
    for _ in range(3):
        first.on_evaluate(0.1)
    first.close()
    server.kill()
    second = BatchSizeOptimizer.from_env(monitor=StepMonitor(), timeout=0.0)
    second.get_batch_size()
    second.on_train_begin()
    second.on_evaluate(0.1)
    server.start()
    wait_until(lambda: f"the Wattwise server at {server.address} is back" in caplog.messages)
    with Client(server.address) as client:
        for _ in range(3):
            second.on_evaluate(0.1)
        second.on_evaluate(0.95)
        second.close()
        assert epochs(client, second.trial) == [1, 2, 3, 4, 5]
        assert client.get_trial(second.trial).trial.newest.energy_joules == 8 * JOULES


@pytest.mark.parametrize("reason", [v1.END_REASON_PREEMPTED, v1.END_REASON_ERROR])
def test_server_that_is_away_and_has_ended_the_trial(
    requested: v1.Trial, server: LiveServer, reason: v1.EndReason.ValueType
) -> None:
    """A trial that the driver has ended stays ended when the server is back, and there is no other trial."""
    with Client(server.address) as client:
        client.end_trial(requested.id, reason)
    server.kill()
    bso = BatchSizeOptimizer.from_env(monitor=StepMonitor(), timeout=0.0)
    bso.get_batch_size()
    server.start()
    wait_until(lambda: bso.training_finished)
    bso.close()
    with Client(server.address) as client:
        assert [trial.end_reason for trial in client.trials(requested.id.job_id)] == [reason]


@pytest.mark.parametrize("restored", [False, True])
def test_database_that_was_lost_before_the_start(
    requested: v1.Trial, server: LiveServer, caplog: pytest.LogCaptureFixture, *, restored: bool
) -> None:
    """A server that no longer knows the trial dispatches no other one, and gets the driver's at its end."""
    server.stop()
    server.lose_database()
    server.start()
    with Client(server.address) as client:
        if restored:
            client.register_job(job_spec(job_id=requested.id.job_id))
        with BatchSizeOptimizer.from_env(monitor=StepMonitor()) as bso:
            assert (bso.get_batch_size(), trial_id(bso.trial), bso.trial.fallback) == (16, requested.id, False)
            bso.on_train_begin()
            bso.on_evaluate(0.1)
            bso.on_evaluate(0.95)
        (trial,) = client.trials(requested.id.job_id)
        assert epochs(client, trial.id) == [1, 2]
        # As the driver asks for it.
        again = client.get_next_batch_size(requested.id.job_id, launch_id="the-driver's").trial
    assert (trial.origin, trial.end_reason) == (v1.TRIAL_ORIGIN_IMPORTED, v1.END_REASON_TARGET_REACHED)
    assert (again.id, again.origin, again.end_reason) == (trial.id, trial.origin, trial.end_reason)
    (warning,) = (each.getMessage() for each in caplog.records if each.levelname == "WARNING")
    assert "is not on the server" in warning


def test_job_that_was_deleted_before_the_start(requested: v1.Trial, server: LiveServer) -> None:
    """A deleted job is not trained, and does not come back."""
    with Client(server.address) as client:
        client.delete_job(requested.id.job_id)
        with BatchSizeOptimizer.from_env(monitor=StepMonitor()) as bso, pytest.raises(TrialDeletedError):
            bso.get_batch_size()
        assert list(client.jobs()) == []


def test_job_that_was_registered_again_before_the_start(requested: v1.Trial, server: LiveServer) -> None:
    """A launch of a deleted job is not trained, and dispatches nothing in the newer job of that id."""
    job_id = requested.id.job_id
    with Client(server.address) as client:
        client.delete_job(job_id)
        client.register_job(job_spec(job_id=job_id))
        with BatchSizeOptimizer.from_env(monitor=StepMonitor()) as bso, pytest.raises(TrialDeletedError):
            bso.get_batch_size()
        assert list(client.trials(job_id)) == []
        other = client.get_next_batch_size(job_id, launch_id="another").trial
        assert other.id.trial_number == requested.id.trial_number
        with BatchSizeOptimizer.from_env(monitor=StepMonitor()) as bso, pytest.raises(TrialDeletedError):
            bso.get_batch_size()
        assert [trial.status for trial in client.trials(job_id)] == [v1.TRIAL_STATUS_RUNNING]


@pytest.mark.parametrize("number", ["1", "2"])
def test_deleted_launch_that_is_not_live(
    requested: v1.Trial, server: LiveServer, monkeypatch: pytest.MonkeyPatch, number: str
) -> None:
    """The same holds if its trial had ended for good, and whatever its number."""
    job_id = requested.id.job_id
    with Client(server.address) as client:
        client.get_next_batch_size(job_id, launch_id="the second")
        monkeypatch.setenv("WATTWISE_TRIAL_NUMBER", number)
        monkeypatch.setenv("WATTWISE_LAUNCH_ID", "the-driver's" if number == "1" else "the second")
        ended = v1.TrialId(job_id=job_id, launch_id=os.environ["WATTWISE_LAUNCH_ID"], trial_number=int(number))
        client.end_trial(ended, v1.END_REASON_ERROR)
        client.delete_job(job_id)
        client.register_job(job_spec(job_id=job_id))
        with BatchSizeOptimizer.from_env(monitor=StepMonitor()) as bso, pytest.raises(TrialDeletedError):
            bso.get_batch_size()
        assert list(client.trials(job_id)) == []


def test_trial_that_was_preempted_before_the_start(requested: v1.Trial, server: LiveServer) -> None:
    """A trial that the driver has ended stays ended: a late process of its command does not train it."""
    with Client(server.address) as client:
        client.end_trial(requested.id, v1.END_REASON_PREEMPTED)
        with BatchSizeOptimizer.from_env(monitor=StepMonitor()) as bso:
            bso.get_batch_size()
            wait_until(lambda: bso.training_finished)
        assert client.get_trial(requested.id).trial.status == v1.TRIAL_STATUS_INTERRUPTED


def test_last_report_is_not_delivered(
    requested: v1.Trial, server: LiveServer, caplog: pytest.LogCaptureFixture
) -> None:
    """If the server stays away, one warning names the trial whose report was not delivered."""
    record = record_of(server.address, requested)
    session = Session(
        Client(server.address),
        requested.id,
        Journal(record),
        beat_seconds=20.0,
        timeout=0.2,
        ends_completed=False,
    )
    server.stop()
    session.start(started(requested))
    result = v1.TrainingResult(
        trial=requested.id, measurement=v1.Measurement(time_seconds=1, energy_joules=1, metric=0.5, epoch=1)
    )
    assert not session.exchange.report(result, 0.2)
    session.close(v1.END_REASON_COMPLETED, 0.2)
    wait_until(lambda: "was not delivered" in caplog.text)
    assert f"trial {requested.id.trial_number}" in caplog.text
    assert "bug" not in caplog.text


def test_without_a_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a driver, the error names the missing variables and `wattwise run`."""
    monkeypatch.setenv("WATTWISE_SERVER", "localhost:50051")
    with pytest.raises(NoDriverError, match=r"WATTWISE_JOB_SPEC, .*`wattwise run JOB.toml`"):
        BatchSizeOptimizer.from_env()


@pytest.mark.usefixtures("requested")
def test_part_of_the_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that got only some of the variables trains no other trial."""
    monkeypatch.delenv("WATTWISE_JOB_SPEC")
    with pytest.raises(NoDriverError, match="WATTWISE_JOB_SPEC is not set"):
        BatchSizeOptimizer.from_env()
    with pytest.raises(NoDriverError, match="WATTWISE_JOB_SPEC is not set"):
        BatchSizeOptimizer("localhost:1", job_spec())


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("BATCH_SIZE", "many", "WATTWISE_BATCH_SIZE is 'many'"),
        ("JOB_SPEC", "{", "WATTWISE_JOB_SPEC"),
        ("JOB_SPEC", json.dumps({"unknown": 1}), "WATTWISE_JOB_SPEC"),
    ],
)
@pytest.mark.usefixtures("requested")
def test_invalid_variables(monkeypatch: pytest.MonkeyPatch, name: str, value: str, message: str) -> None:
    """An invalid variable is named."""
    monkeypatch.setenv(f"WATTWISE_{name}", value)
    with pytest.raises(NoDriverError, match=message):
        BatchSizeOptimizer.from_env()


@pytest.mark.usefixtures("requested")
def test_variables_of_another_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the server answers with another trial than the variables name, nothing is trained."""
    monkeypatch.setenv("WATTWISE_TRIAL_NUMBER", "7")
    with pytest.raises(NoDriverError, match=r"trial 1 with batch size 16.* trial 7"):
        BatchSizeOptimizer.from_env(monitor=StepMonitor()).get_batch_size()


def test_variables_of_another_launch_change_nothing(
    requested: v1.Trial, server: LiveServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The trial of the launch does not live on if the variables name another one."""
    monkeypatch.setenv("WATTWISE_TRIAL_NUMBER", "7")
    with Client(server.address) as client:
        client.end_trial(requested.id, v1.END_REASON_PREEMPTED)
        with BatchSizeOptimizer.from_env(monitor=StepMonitor()) as bso, pytest.raises(NoDriverError):
            bso.get_batch_size()
        assert client.get_trial(requested.id).trial.end_reason == v1.END_REASON_PREEMPTED


@pytest.mark.usefixtures("requested")
@pytest.mark.parametrize("name", ["SERVER", "REASON", "MONITOR"])
def test_variable_with_a_control_character(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A variable with a control character is an error that names it, whatever the variable is for."""
    monkeypatch.setenv(f"WATTWISE_{name}", f"{os.environ[f'WATTWISE_{name}']}\r")
    with pytest.raises(NoDriverError, match=f"WATTWISE_{name} has the control character"):
        BatchSizeOptimizer.from_env(monitor=StepMonitor())


@pytest.mark.parametrize("newer", [True, False])
def test_server_of_another_version(
    requested: v1.Trial, server: LiveServer, monkeypatch: pytest.MonkeyPatch, *, newer: bool
) -> None:
    """A trial is joined if a newer server sets fields of its id that are unknown here, or an older one sets fewer."""

    def of_another_version(method: str, answer: bytes) -> bytes:
        if method != "GetNextBatchSize":
            return answer
        changed = v1.GetNextBatchSizeResponse.FromString(answer)
        if newer:
            # Field 1000 with the number 1.
            changed.trial.id.MergeFromString(b"\xc0\x3e\x01")
        else:
            changed.trial.id.ClearField("launch_id")
        return changed.SerializeToString()

    with Middlebox(server.address, answered=of_another_version) as box:
        monkeypatch.setenv("WATTWISE_SERVER", box.address)
        with BatchSizeOptimizer.from_env(monitor=StepMonitor()) as bso:
            assert bso.get_batch_size() == 16
            bso.on_train_begin()
            bso.on_evaluate(0.95)
            assert bso.target_reached
    with Client(server.address) as client:
        (trial,) = client.trials(requested.id.job_id)
        assert (trial.end_reason, epochs(client, trial.id)) == (v1.END_REASON_TARGET_REACHED, [1])


def test_token_of_a_trainer_is_enough(runs: Runs, site_server: LiveServer) -> None:
    """A token of the role trainer is enough for the driver, which passes it to the command."""
    token = runs.folder / "token"
    runs.environment |= {"WATTWISE_SERVER": site_server.address, "WATTWISE_TOKEN_FILE": str(token)}
    done = ended(runs.start(write_job(runs.folder, with_client("well"), run={"recurrences": 1})))
    assert (done.returncode, done.stderr) == (0, "")
    assert [line["measured_by"] for line in runs.history()] == ["command"]


@pytest.fixture
def site_server(runs: Runs, server: LiveServer) -> LiveServer:
    """A server that requires tokens; a trainer's token is in the file `token`."""
    book = runs.folder / "server.tokens"
    words = ["token", "create", "--tokens", str(book), "--role", "trainer", "--prefix", "test-"]
    code = "import sys; from wattwise.commands.main import main; sys.exit(main(sys.argv[1:]))"
    made = subprocess.run([PYTHON, "-c", code, *words], capture_output=True, text=True, check=True)
    (runs.folder / "token").write_text(made.stdout)
    (runs.folder / "token").chmod(0o600)
    server.stop()
    server.start("--tokens", str(book))
    return server


def test_attempts_are_one_trial(requested: v1.Trial, server: LiveServer) -> None:
    """A process of the driver trains one attempt, whatever `max_tries`, and its miss is raised after it."""

    def train(bso: BatchSizeOptimizer) -> None:
        for attempt in bso.attempts(max_tries=3):
            for _ in attempt.epochs():
                attempt.on_evaluate(0.1)

    with BatchSizeOptimizer.from_env(monitor=StepMonitor()) as bso, pytest.raises(TrainFailError) as caught:
        train(bso)
    assert caught.value.decision == bso.decision
    with Client(server.address) as client:
        (trial,) = client.trials(requested.id.job_id)
    assert trial.end_reason == v1.END_REASON_MAX_EPOCHS


def test_job_without_gpus(requested: v1.Trial, monkeypatch: pytest.MonkeyPatch) -> None:
    """If WATTWISE_JOB_SPEC names no GPUs, the monitor does; a script's job may leave them out, too."""
    monkeypatch.setenv("WATTWISE_JOB_SPEC", spec_to_json(job_spec(job_id=requested.id.job_id, gpu=None)))
    BatchSizeOptimizer("localhost:1", job_spec(job_id=requested.id.job_id, gpu=None)).close()
    with (
        BatchSizeOptimizer.from_env(monitor=EstimateMonitor(50)) as bso,
        pytest.raises(JobDiffersError, match="Test GPU"),
    ):
        # The registered GPUs are others.
        bso.get_batch_size()
