"""Trials that continue from a checkpoint while their server is away: it takes what they measure when it is back."""

from __future__ import annotations

import itertools
import json
import logging
from typing import Any

import pytest
from wattwise import BatchSizeOptimizer, Client, EndReason, v1
from wattwise.errors import JobDiffersError, ResumeError
from wattwise.monitor import Window
from wattwise.training.delivery import deliver_files
from wattwise.training.journal import TrialRecord
from wattwise.training.launch import Endpoint, Launch
from wattwise.training.optimizer import running_trial
from wattwise.training.resume import SavedTrial
from wattwise.training.spool import Spool

from tests.client.training.script import epochs, job_spec, reason_of
from tests.live_server import LiveServer
from tests.waiting import wait_until

_jobs = itertools.count()


class Paced:
    """A monitor whose windows last some seconds of another time than the clock's, and use a joule in each."""

    gpu_indices = (0,)
    kind = "estimate"

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def begin_window(self, name: str) -> None:
        """Opens a window."""

    def end_window(self, name: str) -> Window:
        """Closes the window."""
        del name
        return Window(time=self._seconds, total_energy=self._seconds)


def spooled() -> list[TrialRecord]:
    """The trials in the spool."""
    return [TrialRecord.from_lines(path.read_text().splitlines()) for path in Spool.from_env().paths()]


def launched(address: str, job_id: str, seconds: float, state: Any = None) -> BatchSizeOptimizer:
    """A launch that is ready for an epoch of so many seconds; it continues a state, and does without a server."""
    patience = None if state is None else 0.0
    bso = BatchSizeOptimizer(
        address, job_spec(job_id=job_id), monitor=Paced(seconds), timeout=patience, fallback="default"
    )
    if state is not None:
        bso.load_state_dict(json.loads(json.dumps(state)))
    bso.get_batch_size()
    bso.on_train_begin()
    return bso


def first_process(
    server: LiveServer, reason: v1.EndReason.ValueType, *, up: bool, observer: bool = False
) -> tuple[BatchSizeOptimizer, Any]:
    """Reports three epochs of ten seconds, saves its state after the first, and ends; then the server is down.

    Args:
        server: the server.
        reason: why it ends.
        up: whether the server learns that it ended.
        observer: whether its sums are also computed.
    """
    bso = launched(server.address, f"test-away-{next(_jobs)}", 10.0)
    if observer:
        power = running_trial(bso).power
        assert power is not None
        power.observe(200.0)
    bso.on_evaluate(0.1)
    state = bso.state_dict()
    bso.on_evaluate(0.1)
    bso.on_evaluate(0.1)
    if up:
        bso.close(reason_of(reason))
        server.kill()
    else:
        server.kill()
        bso.close(reason_of(reason))
    assert len(spooled()) == (0 if up else 1)
    return bso, state


def trial_of(client: Client, bso: BatchSizeOptimizer) -> v1.Trial:
    """The trial as the server has it."""
    return client.get_trial(bso.trial).trial


@pytest.mark.parametrize("observer", [False, True])
@pytest.mark.parametrize("known", [True, False], ids=["journal", "no journal"])
def test_sums_carry_on(server: LiveServer, caplog: pytest.LogCaptureFixture, *, known: bool, observer: bool) -> None:
    """Cheaper epochs after an old checkpoint add to what the server had, and are never refused for shrinking."""
    bso, state = first_process(server, v1.END_REASON_PREEMPTED, up=not known, observer=observer)
    again = launched(server.address, bso.trial.job_id, 1.0, state)
    again.on_evaluate(0.2)
    again.on_evaluate(0.2)
    server.start()
    with Client(server.address) as client:
        wait_until(lambda: trial_of(client, bso).status == v1.TRIAL_STATUS_RUNNING)
        again.on_evaluate(0.2)
        wait_until(lambda: epochs(client, bso.trial) == [1, 2, 3, 4])
        again.on_evaluate(0.95)
        again.close()
        trial = trial_of(client, bso)
        assert epochs(client, bso.trial) == [1, 2, 3, 4, 5]
    assert again.target_reached
    assert (trial.newest.time_seconds, trial.newest.energy_joules, trial.newest.epoch) == (34, 34, 5)
    assert trial.newest.HasField("computed") == observer
    if observer:
        assert (trial.newest.computed.time_seconds, trial.newest.computed.power_setting.limit_watts_per_gpu) == (
            34,
            200,
        )
    assert again.state_dict()["time_seconds"] == 34
    assert spooled() == []
    assert "the server refused" not in caplog.text


@pytest.mark.parametrize("trained", [0, 1])
def test_epochs_that_the_server_has(server: LiveServer, trained: int) -> None:
    """When the server is back, the epochs that it has are trained again without being reported again."""
    bso, state = first_process(server, v1.END_REASON_PREEMPTED, up=True)
    again = launched(server.address, bso.trial.job_id, 1.0, state)
    for _ in range(trained):
        again.on_evaluate(0.2)
    server.start()
    with Client(server.address) as client:
        wait_until(lambda: trial_of(client, bso).status == v1.TRIAL_STATUS_RUNNING)
        while again.last_epoch < 4:
            again.on_evaluate(0.2)
        wait_until(lambda: epochs(client, bso.trial) == [1, 2, 3, 4])
    assert again.state_dict()["time_seconds"] == 33
    assert again.state_dict(within_epoch=True)["time_seconds"] == 34
    again.close(EndReason.PREEMPTED)


@pytest.mark.parametrize("known", [True, False], ids=["journal", "no journal"])
def test_process_that_ends_before_the_server_is_back(server: LiveServer, *, known: bool) -> None:
    """What was trained without the server is delivered later, with the sums that the server had before."""
    bso, state = first_process(server, v1.END_REASON_PREEMPTED, up=not known)
    again = launched(server.address, bso.trial.job_id, 1.0, state)
    for _ in range(4):
        again.on_evaluate(0.2)
    again.close(EndReason.PREEMPTED)
    server.start()
    with Client(server.address) as client:
        assert deliver_files(client, Spool.from_env().paths(), 10.0) == (1, 0, None)
        trial = trial_of(client, bso)
        assert epochs(client, bso.trial) == [1, 2, 3, 4, 5]
    assert (trial.newest.time_seconds, trial.end_reason) == (34, v1.END_REASON_PREEMPTED)
    assert spooled() == []


def test_third_process_finds_the_server(server: LiveServer) -> None:
    """A process that finds the server again carries on the sums of one that did not, and of the one before."""
    bso, state = first_process(server, v1.END_REASON_PREEMPTED, up=True)
    second = launched(server.address, bso.trial.job_id, 1.0, state)
    for _ in range(4):
        second.on_evaluate(0.2)
    state = second.state_dict()
    second.close(EndReason.PREEMPTED)
    server.start()
    third = BatchSizeOptimizer(server.address, job_spec(job_id=bso.trial.job_id), monitor=Paced(1.0))
    third.load_state_dict(state)
    third.get_batch_size()
    third.on_train_begin()
    third.on_evaluate(0.95)
    third.close()
    with Client(server.address) as client:
        assert epochs(client, bso.trial) == [1, 2, 3, 4, 5, 6]
        assert trial_of(client, bso).newest.time_seconds == 35
    assert spooled() == []


def test_epochs_that_are_not_trained_again_are_delivered(server: LiveServer) -> None:
    """A process that continues a checkpoint and ends at once leaves nothing behind that an earlier one measured."""
    bso = launched(server.address, f"test-away-{next(_jobs)}", 10.0)
    bso.on_evaluate(0.1)
    state = bso.state_dict()
    server.kill()
    bso.on_evaluate(0.2)
    bso.close(EndReason.PREEMPTED)
    again = launched(server.address, bso.trial.job_id, 1.0, state)
    server.start()
    again.close(EndReason.PREEMPTED)
    with Client(server.address) as client:
        assert epochs(client, bso.trial) == [1, 2]
        assert trial_of(client, bso).end_reason == v1.END_REASON_PREEMPTED
    assert spooled() == []


@pytest.mark.parametrize("meets", [True, False])
def test_trial_that_had_ended_for_good(server: LiveServer, caplog: pytest.LogCaptureFixture, *, meets: bool) -> None:
    """If its trainer had ended the trial, which nobody here knew, what is trained becomes a trial of its own, once."""
    bso, state = first_process(server, v1.END_REASON_ERROR, up=True)
    again = launched(server.address, bso.trial.job_id, 1.0, state)
    again.on_evaluate(0.2)
    if meets:
        server.start()
        wait_until(lambda: "ended by its trainer (error)" in caplog.text)
    again.on_evaluate(0.95)
    again.close()
    with Client(server.address) as client:
        if not meets:
            (path,) = Spool.from_env().paths()
            content = path.read_bytes()
            server.start()
            for _ in range(2):
                path.write_bytes(content)
                assert deliver_files(client, [path], 10.0) == (1, 0, None)
        first, second = client.trials(bso.trial.job_id)
        assert (first.end_reason, first.newest.epoch) == (v1.END_REASON_ERROR, 3)
        assert (second.end_reason, second.origin) == (v1.END_REASON_TARGET_REACHED, v1.TRIAL_ORIGIN_IMPORTED)
        assert epochs(client, second.id) == [2, 3]
    assert spooled() == []


def test_trial_that_was_decided(server: LiveServer) -> None:
    """If the server had decided the trial, the training is over once that is known, and nothing is kept."""
    bso = launched(server.address, f"test-away-{next(_jobs)}", 10.0)
    bso.on_evaluate(0.1)
    state = bso.state_dict()
    bso.on_evaluate(0.95)
    bso.close()
    server.kill()
    again = launched(server.address, bso.trial.job_id, 1.0, state)
    again.on_evaluate(0.2)
    server.start()
    wait_until(lambda: again.training_finished)
    again.close()
    assert again.target_reached
    assert spooled() == []
    with Client(server.address) as client:
        assert epochs(client, bso.trial) == [1, 2]


@pytest.mark.parametrize("reason", [v1.END_REASON_ERROR, v1.END_REASON_OUT_OF_MEMORY, v1.END_REASON_COMPLETED])
@pytest.mark.parametrize("dispatched", [True, False])
def test_end_that_is_known_here(server: LiveServer, reason: v1.EndReason.ValueType, *, dispatched: bool) -> None:
    """A trial that ended for good cannot continue, with or without a server; its measurements stay for the delivery."""
    if dispatched:
        bso, state = first_process(server, reason, up=False)
    else:
        server.kill()
        job = job_spec()
        bso = BatchSizeOptimizer(server.address, job, monitor=Paced(10.0), timeout=0.0, fallback="default")
        bso.get_batch_size()
        bso.on_train_begin()
        bso.on_evaluate(0.1)
        state = bso.state_dict()
        bso.close(reason_of(reason))
    with pytest.raises(ResumeError):
        launched(server.address, bso.trial.job_id, 1.0, state)
    ended = v1.END_REASON_STOPPED_EARLY if reason == v1.END_REASON_COMPLETED else reason
    assert [each.end_reason for each in spooled()] == [ended]


@pytest.mark.parametrize("reason", [v1.END_REASON_ERROR, v1.END_REASON_PREEMPTED])
def test_fallback_that_was_delivered(server: LiveServer, reason: v1.EndReason.ValueType) -> None:
    """A fallback trial that continues after its delivery adds to it, or is another one if it had ended for good."""
    server.kill()
    bso = BatchSizeOptimizer(server.address, job_spec(), monitor=Paced(10.0), timeout=0.0, fallback="default")
    bso.get_batch_size()
    bso.on_train_begin()
    bso.on_evaluate(0.1)
    state = bso.state_dict()
    bso.on_evaluate(0.1)
    server.start()
    bso.close(reason_of(reason))
    assert spooled() == []
    again = launched(server.address, bso.trial.job_id, 1.0, state)
    for metric in (0.2, 0.2, 0.95):
        again.on_evaluate(metric)
    again.close()
    with Client(server.address) as client:
        trials = list(client.trials(bso.trial.job_id))
        assert trials[-1].end_reason == v1.END_REASON_TARGET_REACHED
        measured = [epochs(client, trial.id) for trial in trials]
    if reason == v1.END_REASON_ERROR:
        assert measured == [[1, 2], [2, 3, 4]]
    else:
        assert measured == [[1, 2, 3, 4]]
        assert trials[0].newest.time_seconds == 23
    assert spooled() == []


def test_deleted_trial_is_stopped(server: LiveServer, caplog: pytest.LogCaptureFixture) -> None:
    """A preempted trial whose job was deleted is told to stop when the server is back, and is not delivered."""
    caplog.set_level(logging.INFO, logger="wattwise")
    bso = launched(server.address, f"test-away-{next(_jobs)}", 10.0)
    bso.on_evaluate(0.1)
    state = bso.state_dict()
    bso.close(EndReason.PREEMPTED)
    with Client(server.address) as client:
        client.delete_job(bso.trial.job_id)
        server.kill()
        again = launched(server.address, bso.trial.job_id, 1.0, state)
        again.on_evaluate(0.2)
        server.start()
        wait_until(lambda: again.training_finished)
        again.close()
        assert list(client.jobs()) == []
    assert spooled() == []


def test_trial_that_is_about_to_continue_is_not_delivered(server: LiveServer) -> None:
    """A launch that has resumed a trial holds its file, so that no other launch delivers the end that it had."""
    bso = launched(server.address, f"test-away-{next(_jobs)}", 10.0)
    bso.on_evaluate(0.1)
    state = bso.state_dict()
    server.kill()
    bso.on_evaluate(0.2)
    bso.close(EndReason.PREEMPTED)
    server.start()
    endpoint = Endpoint.of(server.address, None, None)
    again = Launch(endpoint, job_spec(job_id=bso.trial.job_id))
    again.resume(SavedTrial.from_state(state))
    monitor = Paced(1.0)
    again.start(monitor)
    with Client(server.address) as client:
        assert deliver_files(client, Spool.from_env().paths(), 10.0) == (0, 0, None)
        assert trial_of(client, bso).status == v1.TRIAL_STATUS_RUNNING
    again = Launch(endpoint, job_spec(job_id=bso.trial.job_id, target_metric=0.5))
    again.resume(SavedTrial.from_state(state))
    with pytest.raises(JobDiffersError):
        again.start(monitor)


def test_database_that_was_lost_before_the_launch(server: LiveServer) -> None:
    """With a fallback the trial continues, and the server that has lost its database gets all of it."""
    _, state = first_process(server, v1.END_REASON_PREEMPTED, up=False)
    server.lose_database()
    server.start()
    bso = launched(server.address, state["job_id"], 10.0, state)
    assert bso.last_epoch == 1
    bso.on_evaluate(0.95)
    bso.close()
    with Client(server.address) as client:
        (trial,) = client.trials(state["job_id"])
    assert (trial.origin, trial.end_reason) == (v1.TRIAL_ORIGIN_IMPORTED, v1.END_REASON_TARGET_REACHED)
    # The three epochs of the first process and the one of the second.
    assert (trial.newest.epoch, trial.newest.time_seconds) == (2, 40.0)
