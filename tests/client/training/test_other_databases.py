"""Servers that come back with another database: a trial's number may be that of another launch then."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from wattwise import BatchSizeOptimizer, Client, EndReason, v1
from wattwise.errors import ResumeError, TrainFailError
from wattwise.training.delivery import deliver_files
from wattwise.training.spool import Spool

from tests.client.rpc.middlebox import Middlebox
from tests.client.training.script import StepMonitor, begun, epochs, job_spec
from tests.client.training.test_resume_away import launched, spooled
from tests.live_server import LiveServer
from tests.waiting import wait_until

JOB = "test-other-database"


@contextmanager
def out_of_reach(server: LiveServer, *, lost: bool) -> Iterator[Client]:
    """Meanwhile the database, or an empty one, is served where no trainer reaches it; yields a client there."""
    server.stop()
    if lost:
        server.lose_database()
    with LiveServer(server.database.parent) as aside:
        with Client(aside.start()) as client:
            yield client
        aside.stop()
    server.start()


def dispatched_to_another(client: Client) -> v1.Trial:
    """The first trial of the job, which another launch has."""
    client.register_job(job_spec(job_id=JOB))
    trial = client.get_next_batch_size(JOB, launch_id="another").trial
    assert trial.id.trial_number == 1
    return trial


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    """The client's warnings."""
    return [each.getMessage() for each in caplog.records if each.name == "wattwise" and each.levelname == "WARNING"]


@pytest.mark.parametrize("streams", [True, False])
def test_number_of_another_launch(server: LiveServer, caplog: pytest.LogCaptureFixture, *, streams: bool) -> None:
    """A launch whose number another one has now reports nothing there, and delivers its own trial at its end."""
    with Middlebox(server.address, messages_per_stream=1000 if streams else 0) as box:
        bso = begun(box.address, job_id=JOB)
        bso.on_evaluate(0.1)
        with out_of_reach(server, lost=True) as aside:
            other = dispatched_to_another(aside)
        assert other.id.trial_number == bso.trial.number
        bso.on_evaluate(0.2)
        wait_until(lambda: "its database lost or restored" in caplog.text)
        bso.on_evaluate(0.95)
        assert bso.target_reached
        bso.close()
    with Client(server.address) as client:
        assert client.get_trial(other.id).trial.status == v1.TRIAL_STATUS_RUNNING
        assert epochs(client, other.id) == []
        _, own = client.trials(JOB)
        assert (own.end_reason, epochs(client, own.id)) == (v1.END_REASON_TARGET_REACHED, [1, 2, 3])
    assert spooled() == []


def test_trial_that_ends_before_its_session_meets_the_server(server: LiveServer) -> None:
    """Also the calls that end a trial do not go to that of another launch."""
    bso = begun(server.address, job_id=JOB)
    with out_of_reach(server, lost=True) as aside:
        other = dispatched_to_another(aside)
        bso.on_evaluate(0.1)
    bso.close(EndReason.ERROR)
    with Client(server.address) as client:
        # Unless the close had the time for it.
        deliver_files(client, Spool.from_env().paths(), 10.0)
        assert client.get_trial(other.id).trial.status == v1.TRIAL_STATUS_RUNNING
        assert epochs(client, other.id) == []
        assert [trial.end_reason for trial in client.trials(JOB)][1:] == [v1.END_REASON_ERROR]
    assert spooled() == []


def test_job_that_was_deleted_and_registered_again(server: LiveServer) -> None:
    """A launch that was deleted during an outage stops, though the job is back and has a trial of its number."""
    bso = begun(server.address, job_id=JOB)
    with out_of_reach(server, lost=False) as aside:
        bso.on_evaluate(0.1)
        aside.delete_job(JOB)
        other = dispatched_to_another(aside)
    assert other.id.trial_number == bso.trial.number
    wait_until(lambda: bso.training_finished)
    bso.close()
    with Client(server.address) as client:
        assert [trial.status for trial in client.trials(JOB)] == [v1.TRIAL_STATUS_RUNNING]
        assert epochs(client, other.id) == []
    assert bso.decision is not None
    assert "was deleted" in bso.decision.message
    assert spooled() == []


def test_restored_database_that_remembers_a_deletion(server: LiveServer, caplog: pytest.LogCaptureFixture) -> None:
    """A trial is not taken for one of its number that was deleted with an older job of the same id."""
    with Client(server.address) as client:
        client.register_job(job_spec(job_id=JOB))
        old = client.get_next_batch_size(JOB, launch_id="old").trial
        client.end_trial(old.id, v1.END_REASON_PREEMPTED)
        client.delete_job(JOB)
        client.register_job(job_spec(job_id=JOB))
    server.stop()
    backup = server.database.read_bytes()
    server.start()
    bso = begun(server.address, job_id=JOB)
    bso.on_evaluate(0.1)
    assert bso.trial.number == old.id.trial_number
    server.stop()
    server.database.write_bytes(backup)
    server.start()
    wait_until(lambda: "its database lost or restored" in caplog.text)
    assert not bso.training_finished
    bso.on_evaluate(0.95)
    bso.close()
    with Client(server.address) as client:
        (trial,) = client.trials(JOB)
        assert (trial.end_reason, epochs(client, trial.id)) == (v1.END_REASON_TARGET_REACHED, [1, 2])
    assert spooled() == []


def test_checkpoint_of_a_lost_trial(server: LiveServer, caplog: pytest.LogCaptureFixture) -> None:
    """With a fallback it continues after one warning, which is true; without one the error says so."""
    first = launched(server.address, JOB, 10.0)
    first.on_evaluate(0.1)
    state = first.state_dict()
    first.close(EndReason.PREEMPTED)
    with out_of_reach(server, lost=True):
        caplog.clear()
    again = BatchSizeOptimizer(server.address, job_spec(job_id=JOB), monitor=StepMonitor())
    again.load_state_dict(state)
    with pytest.raises(ResumeError, match="pass a fallback"):
        again.get_batch_size()
    again = BatchSizeOptimizer(server.address, job_spec(job_id=JOB), monitor=StepMonitor(), fallback="default")
    again.load_state_dict(state)
    assert (again.get_batch_size(), again.trial.fallback) == (state["batch_size"], True)
    again.on_train_begin()
    again.on_evaluate(0.2)
    again.on_evaluate(0.95)
    again.close()
    (warning,) = warnings(caplog)
    assert warning.endswith("delivered at its end")
    assert "pass a fallback" not in warning
    with Client(server.address) as client:
        (trial,) = client.trials(JOB)
        assert (trial.end_reason, trial.newest.epoch) == (v1.END_REASON_TARGET_REACHED, 3)
    assert spooled() == []


def test_checkpoint_whose_number_another_launch_has(server: LiveServer) -> None:
    """A checkpoint does not continue the trial of another launch."""
    first = launched(server.address, JOB, 10.0)
    first.on_evaluate(0.1)
    state = first.state_dict()
    first.close(EndReason.PREEMPTED)
    with out_of_reach(server, lost=True) as aside:
        other = dispatched_to_another(aside)
    again = BatchSizeOptimizer(server.address, job_spec(job_id=JOB), monitor=StepMonitor(), fallback="default")
    again.load_state_dict(state)
    again.get_batch_size()
    again.on_train_begin()
    again.on_evaluate(0.95)
    again.close()
    with Client(server.address) as client:
        assert client.get_trial(other.id).trial.status == v1.TRIAL_STATUS_RUNNING
        assert [trial.end_reason for trial in client.trials(JOB)][1:] == [v1.END_REASON_TARGET_REACHED]


@pytest.mark.parametrize("meets", [True, False])
def test_third_process_of_a_trial_that_had_ended(
    server: LiveServer, caplog: pytest.LogCaptureFixture, *, meets: bool
) -> None:
    """What a process trained under another id, since its trial had ended, is continued by the next one, and kept."""
    first = launched(server.address, JOB, 10.0)
    first.on_evaluate(0.1)
    state = first.state_dict()
    first.close(EndReason.ERROR)
    server.stop()
    second = launched(server.address, JOB, 1.0, state)
    second.on_evaluate(0.2)
    server.start()
    wait_until(lambda: "ended by its trainer (error)" in caplog.text)
    second.on_evaluate(0.2)
    state = second.state_dict()
    server.stop()
    second.close(EndReason.PREEMPTED)
    third = launched(server.address, JOB, 1.0, state)
    third.on_evaluate(0.2)
    if meets:
        server.start()
    third.on_evaluate(0.95)
    third.close()
    assert third.target_reached
    if not meets:
        server.start()
    with Client(server.address) as client:
        assert deliver_files(client, Spool.from_env().paths(), 10.0).refused == 0
        ended, own = client.trials(JOB)
        assert (ended.end_reason, ended.newest.epoch) == (v1.END_REASON_ERROR, 1)
        assert (own.end_reason, epochs(client, own.id)) == (v1.END_REASON_TARGET_REACHED, [2, 3, 4, 5])
    assert spooled() == []


@pytest.fixture
def empty(tmp_path: Path) -> Iterator[LiveServer]:
    """Another server, whose database is empty."""
    folder = tmp_path / "empty"
    folder.mkdir()
    with LiveServer(folder) as started:
        started.start()
        yield started


def test_database_that_is_lost_right_after_a_decision(server: LiveServer, empty: LiveServer) -> None:
    """A trial that was decided, but that the server did not keep, is delivered."""

    def lost(method: str, answer: bytes) -> bytes:
        if method == "ReportResult" and v1.ReportResultResponse.FromString(answer).decision.stop_train:
            box.move_to(empty.address)
        return answer

    with Middlebox(server.address, answered=lost) as box:
        bso = begun(box.address, job_id=JOB, max_epochs=2)
        bso.on_evaluate(0.1)
        with pytest.raises(TrainFailError):
            bso.on_evaluate(0.2)
        bso.close()
    assert spooled() == []
    with Client(empty.address) as client:
        (trial,) = client.trials(JOB)
        assert (trial.end_reason, epochs(client, trial.id)) == (v1.END_REASON_MAX_EPOCHS, [1, 2])


@pytest.mark.parametrize("ended", [True, False])
def test_database_that_is_lost_as_a_trial_is_resumed(
    server: LiveServer, empty: LiveServer, caplog: pytest.LogCaptureFixture, *, ended: bool
) -> None:
    """A trial that is lost between two answers goes on, and is kept until it is delivered, whatever the first said."""

    def lost(method: str, answer: bytes) -> bytes:
        if method == "Heartbeat":
            box.move_to(empty.address)
        return answer

    with Middlebox(server.address) as box:
        first = launched(box.address, JOB, 10.0)
        first.on_evaluate(0.1)
        state = first.state_dict()
        if not ended:
            box.move_to("127.0.0.1:1")
        first.close(EndReason.PREEMPTED)
        box.move_to("127.0.0.1:1")
        again = launched(box.address, JOB, 10.0, state)
        box.answered = lost
        box.move_to(server.address)
        wait_until(lambda: "its database lost or restored" in caplog.text or again.training_finished)
        assert not again.training_finished
        box.move_to("127.0.0.1:1")
        again.on_evaluate(0.95)
        again.close()
        assert again.target_reached
    with Client(empty.address) as client:
        assert deliver_files(client, Spool.from_env().paths(), 10.0, server="").delivered == 1
        (trial,) = client.trials(JOB)
        assert (trial.end_reason, trial.newest.epoch) == (v1.END_REASON_TARGET_REACHED, 2)
