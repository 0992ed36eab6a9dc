"""A training that is restarted from its checkpoint."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from wattwise import BatchSizeOptimizer, Client, EndReason, v1
from wattwise.errors import JobDiffersError, OperationOrderError, ResumeError, TrainFailError
from wattwise.rpc.calls import trial_id
from wattwise.spec import enum_name
from wattwise.training.optimizer import running_trial
from wattwise.training.resume import SavedTrial, Sums

from tests.client.training.script import (
    JOULES,
    StepMonitor,
    begun,
    ended,
    epochs,
    job_spec,
    read_line,
    reason_of,
    send_line,
)
from tests.live_server import LiveServer

State = dict[str, Any]


def resumed(address: str, state: State, **given: Any) -> BatchSizeOptimizer:
    """A training that continues from a state, which was written and read as JSON, and has its batch size."""
    bso = BatchSizeOptimizer(address, job_spec(**given), monitor=StepMonitor())
    bso.load_state_dict(json.loads(json.dumps(state)))
    bso.get_batch_size()
    return bso


def preempted(address: str, metrics: tuple[float, ...] = (0.1, 0.2), **given: Any) -> tuple[BatchSizeOptimizer, State]:
    """A training that has reported these metrics, saved its state, and was preempted."""
    bso = begun(address, **given)
    for metric in metrics:
        bso.on_evaluate(metric)
    state = bso.state_dict()
    bso.close(EndReason.PREEMPTED)
    return bso, state


def trial_of(address: str, bso: BatchSizeOptimizer) -> v1.Trial:
    """The trial as the server has it."""
    with Client(address) as client:
        return client.get_trial(bso.trial).trial


def test_state_is_plain(grpc_addr: str) -> None:
    """The state has plain values only, and describes the end of the last epoch."""
    with begun(grpc_addr) as bso:
        assert bso.state_dict()["epoch"] == 0
        bso.on_evaluate(0.1)
        state = bso.state_dict()
    assert {type(value) for value in state.values()} == {str, int, float}
    assert (state["epoch"], state["time_seconds"], state["energy_joules"]) == (1, 1.0, JOULES)
    assert (state["job_id"], state["launch_id"]) == (bso.trial.job_id, bso.trial.launch_id)


def test_preempted_trial_continues(grpc_addr: str, caplog: pytest.LogCaptureFixture) -> None:
    """The restarted training gets the same trial; epochs, time and energy continue from the checkpoint."""
    first, state = preempted(grpc_addr)
    job_id = first.trial.job_id
    caplog.clear()
    with caplog.at_level("INFO", logger="wattwise"):
        second = resumed(grpc_addr, state, job_id=job_id)
    assert (trial_id(second.trial), second.trial.reason) == (trial_id(first.trial), first.trial.reason)
    (line,) = (line for line in caplog.messages if "continues after epoch 2" in line)
    # The first launch has logged the reason.
    assert first.trial.reason not in line
    assert second.trial.launch_id == first.trial.launch_id
    assert trial_of(grpc_addr, second).status == v1.TRIAL_STATUS_RUNNING
    seen = []
    for epoch in second.epochs():
        seen.append(epoch)
        second.on_evaluate(0.25 * epoch)
    assert seen == [3, 4]
    trial = trial_of(grpc_addr, second)
    assert (trial.end_reason, trial.newest.epoch) == (v1.END_REASON_TARGET_REACHED, 4)
    assert (trial.newest.time_seconds, trial.newest.energy_joules) == (4, 4 * JOULES)


def test_epochs_after_the_checkpoint_are_trained_again_and_counted(grpc_addr: str) -> None:
    """Epochs after the checkpoint are not reported again, but the cost of their repetition counts."""
    bso = begun(grpc_addr)
    bso.on_evaluate(0.1)
    state = bso.state_dict()
    bso.on_evaluate(0.2)
    bso.on_evaluate(0.3)
    bso.close(EndReason.PREEMPTED)
    again = resumed(grpc_addr, state, job_id=bso.trial.job_id)
    seen = []
    for epoch in again.epochs():
        seen.append(epoch)
        again.on_evaluate(0.95 if epoch == 4 else 0.4)
    assert seen == [2, 3, 4]
    with Client(grpc_addr) as client:
        found = client.get_trial(bso.trial)
        measured = list(client.measurements(bso.trial))
    assert [(m.epoch, m.metric) for m in measured] == [(1, 0.1), (2, 0.2), (3, 0.3), (4, 0.95)]
    # Three windows before, three after.
    assert (found.trial.newest.time_seconds, found.trial.newest.energy_joules) == (6, 6 * JOULES)


def test_checkpoint_that_is_ahead_of_the_server(server: LiveServer) -> None:
    """Epochs that were not reported because the server was away are part of the sums, and are reported now."""
    bso = begun(server.address)
    bso.on_evaluate(0.1)
    server.kill()
    bso.on_evaluate(0.2)
    bso.on_evaluate(0.3)
    state = bso.state_dict()
    bso.close(EndReason.PREEMPTED)
    server.start()
    again = resumed(server.address, state, job_id=bso.trial.job_id)
    assert (running_trial(again).info.snapshot.newest.epoch, again.last_epoch) == (1, 3)
    again.on_train_begin()
    again.on_evaluate(0.4)
    with Client(server.address) as client:
        assert epochs(client, bso.trial) == [1, 2, 3, 4]
    trial = trial_of(server.address, again)
    assert (trial.newest.epoch, trial.newest.time_seconds, trial.newest.energy_joules) == (4, 4, 4 * JOULES)
    again.close()


def test_resumed_trial_beside_a_newer_exploration(grpc_addr: str) -> None:
    """A trial that is resumed while another exploration runs is a concurrent trial."""
    bso, state = preempted(grpc_addr)
    job_id = bso.trial.job_id
    with Client(grpc_addr) as client:
        assert client.get_next_batch_size(job_id).trial.pruning_gts.role == v1.PRUNING_GTS_ROLE_EXPLORATION
    with resumed(grpc_addr, state, job_id=job_id) as again:
        assert running_trial(again).info.snapshot.pruning_gts.role == v1.PRUNING_GTS_ROLE_CONCURRENT


@pytest.mark.parametrize("reached", [True, False])
def test_trial_that_was_decided_in_the_meantime(grpc_addr: str, reached: bool) -> None:
    """A decided trial is over at once, with its decision: nothing is measured, and a missed target raises."""
    bso = begun(grpc_addr, max_epochs=1)
    state = bso.state_dict()
    if reached:
        bso.on_evaluate(0.95)
    else:
        with pytest.raises(TrainFailError):
            bso.on_evaluate(0.1)
        assert trial_of(grpc_addr, bso).end_reason == v1.END_REASON_MAX_EPOCHS
    again = resumed(grpc_addr, state, job_id=bso.trial.job_id, max_epochs=1)
    assert (again.get_batch_size(), again.training_finished, again.target_reached) == (16, True, reached)
    assert again.decision == bso.decision
    again.on_train_begin()
    again.on_evaluate(0.5)
    monitor = running_trial(again).monitor
    assert isinstance(monitor, StepMonitor)
    assert not monitor.open
    if reached:
        assert list(again.epochs()) == []
    else:
        with pytest.raises(TrainFailError, match="without the checkpoint"):
            next(again.epochs())
    again.close()


@pytest.mark.parametrize("reason", [v1.END_REASON_ERROR, v1.END_REASON_OUT_OF_MEMORY, v1.END_REASON_COMPLETED])
def test_trial_that_failed_does_not_continue(grpc_addr: str, reason: v1.EndReason.ValueType) -> None:
    """A trial that its trainer ended, other than as preempted, is refused, with the reason and the remedy."""
    bso = begun(grpc_addr)
    state = bso.state_dict()
    bso.close(reason_of(reason))
    with pytest.raises(ResumeError, match=rf"\({enum_name(v1.EndReason, reason)}\).*load_state_dict\(\)"):
        resumed(grpc_addr, state, job_id=bso.trial.job_id)
    assert trial_of(grpc_addr, bso).end_reason == reason


def test_state_of_another_job(grpc_addr: str) -> None:
    """A checkpoint of another job is refused before a call to the server."""
    _, state = preempted(grpc_addr)
    with pytest.raises(ResumeError, match=r"'test-\d+', not .*'test-other'"):
        resumed(grpc_addr, state, job_id="test-other")


def test_changed_job(grpc_addr: str) -> None:
    """A changed job is refused with the changed fields, and the trial can still be resumed."""
    bso, state = preempted(grpc_addr)
    job_id = bso.trial.job_id
    with pytest.raises(JobDiffersError) as caught:
        resumed(grpc_addr, state, job_id=job_id, target_metric=0.8)
    assert [each.field for each in caught.value.violations] == ["job.target_metric"]
    assert trial_of(grpc_addr, bso).end_reason == v1.END_REASON_PREEMPTED
    resumed(grpc_addr, state, job_id=job_id).close()


def test_deleted_job(grpc_addr: str) -> None:
    """A checkpoint of a deleted job is refused, and the job does not come back by it."""
    bso, state = preempted(grpc_addr)
    job_id = bso.trial.job_id
    with Client(grpc_addr) as client:
        client.delete_job(job_id)
        with pytest.raises(ResumeError, match="deleted with its job"):
            resumed(grpc_addr, state, job_id=job_id)
        assert job_id not in [row.job.spec.job_id for row in client.jobs()]


def test_job_that_was_registered_again(grpc_addr: str) -> None:
    """A trial with the same number of a job that was deleted and registered again is another trial."""
    bso, state = preempted(grpc_addr)
    job_id = bso.trial.job_id
    with Client(grpc_addr) as client:
        client.delete_job(job_id)
        client.register_job(job_spec(job_id=job_id))
        with pytest.raises(ResumeError, match="deleted with its job"):
            resumed(grpc_addr, state, job_id=job_id)
        assert list(client.trials(job_id)) == [], "a new trial would stay untrained"


def test_changed_job_of_a_trial_that_runs(grpc_addr: str) -> None:
    """A second process with another configuration is refused, and the first one continues."""
    spec = job_spec()
    with Client(grpc_addr) as client:
        client.register_job(spec)
        trial = client.get_next_batch_size(str(spec.job_id), launch_id="the-first").trial
        state = SavedTrial.of(trial, Sums()).state()
        with pytest.raises(JobDiffersError):
            resumed(grpc_addr, state, job_id=spec.job_id, target_metric=0.8)
        assert client.get_trial(trial.id).trial.status == v1.TRIAL_STATUS_RUNNING


def test_trial_of_an_older_optimizer_in_this_process(grpc_addr: str) -> None:
    """A checkpoint continues a trial that still runs in the same process; the older optimizer's training is over."""
    older = begun(grpc_addr)
    older.on_evaluate(0.1)
    with resumed(grpc_addr, older.state_dict(), job_id=older.trial.job_id) as again:
        assert (trial_id(again.trial), again.last_epoch) == (trial_id(older.trial), 1)
        assert (older.training_finished, again.training_finished) == (True, False)


@pytest.mark.parametrize("state", [None, 1, "x", [], [{"version": 1}], {}, {"attempt": 1}], ids=repr)
def test_object_that_is_no_state(grpc_addr: str, state: Any) -> None:
    """An object that `state_dict` has not returned is refused as such, whatever its type."""
    with (
        BatchSizeOptimizer(grpc_addr, job_spec(), monitor=StepMonitor()) as bso,
        pytest.raises(ResumeError, match="not a state"),
    ):
        bso.load_state_dict(state)


def test_order_of_loading_and_saving(grpc_addr: str) -> None:
    """state_dict is called after get_batch_size, and load_state_dict before training begins."""
    first, state = preempted(grpc_addr)
    bso = BatchSizeOptimizer(grpc_addr, job_spec(job_id=first.trial.job_id), monitor=StepMonitor())
    with pytest.raises(OperationOrderError, match=r"get_batch_size\(\)"):
        bso.state_dict()
    with bso:
        bso.get_batch_size()
        bso.on_train_begin()
        with pytest.raises(OperationOrderError, match=r"before the first epoch"):
            bso.load_state_dict(state)


def test_trial_of_a_checkpoint_takes_the_place_of_a_new_one(grpc_addr: str) -> None:
    """A state that is loaded after get_batch_size continues its trial; the new one ends as preempted."""
    first, state = preempted(grpc_addr)
    bso = BatchSizeOptimizer(grpc_addr, job_spec(job_id=first.trial.job_id), monitor=StepMonitor())
    with bso:
        bso.get_batch_size()
        new = bso.trial
        assert new.number != first.trial.number
        if bso.trial.batch_size != first.trial.batch_size:
            with pytest.raises(ResumeError, match=str(first.trial.batch_size)):
                bso.load_state_dict(state)
            return
        bso.load_state_dict(state)
        assert bso.trial.number == first.trial.number
        assert bso.last_epoch == state["epoch"]
    with Client(grpc_addr) as client:
        assert client.get_trial(new).trial.end_reason == v1.END_REASON_PREEMPTED


def test_refused_checkpoint_is_no_failure_of_the_batch_size(grpc_addr: str) -> None:
    """A launch that cannot continue its checkpoint ends its new trial as preempted."""
    bso = BatchSizeOptimizer(grpc_addr, job_spec(), monitor=StepMonitor())
    bso.get_batch_size()
    with pytest.raises(ResumeError), bso:
        bso.load_state_dict({})
    assert trial_of(grpc_addr, bso).end_reason == v1.END_REASON_PREEMPTED


@pytest.mark.parametrize(("first", "second"), [(1, 2), (2, 1), (2, 2)])
def test_two_checkpoints_of_a_trial(grpc_addr: str, first: int, second: int) -> None:
    """The state of another epoch than the one before is refused; that of the same epoch changes nothing."""
    bso = begun(grpc_addr)
    states: dict[int, State] = {}
    for epoch in (1, 2):
        bso.on_evaluate(0.1)
        states[epoch] = bso.state_dict()
    bso.close(EndReason.PREEMPTED)
    with resumed(grpc_addr, states[first], job_id=bso.trial.job_id) as again:
        if first == second:
            again.load_state_dict(states[second])
        else:
            with pytest.raises(ResumeError, match=rf"after epoch {first}, .* epoch {second}"):
                again.load_state_dict(states[second])
        assert again.last_epoch == first


def test_return_to_a_checkpoint_while_training(grpc_addr: str) -> None:
    """A trainer that goes back to its last checkpoint goes on with the trial; what it trains again counts."""
    with begun(grpc_addr) as bso:
        bso.on_evaluate(0.1)
        state = bso.state_dict()
        bso.on_evaluate(0.05)
        bso.load_state_dict(state)
        bso.on_evaluate(0.95)
    trial = trial_of(grpc_addr, bso)
    assert (trial.newest.epoch, trial.newest.time_seconds) == (3, 3)


def test_state_within_an_iteration(grpc_addr: str) -> None:
    """A state that is saved before on_evaluate, in a loop over epochs(), includes the time of the running epoch."""
    bso = BatchSizeOptimizer(grpc_addr, job_spec(), monitor=StepMonitor())
    seen = []
    for _ in bso.epochs():
        seen += [bso.state_dict()]
        bso.on_evaluate(0.95 if bso.last_epoch else 0.1)
        seen += [bso.state_dict()]
    # The time of a window is a second, and a state that measures begins another.
    assert [(state["epoch"], state["time_seconds"]) for state in seen] == [(0, 1), (1, 2), (1, 3), (2, 4)]


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"version": 99}, "version 99"),
        ({"epoch": -1}, "epoch=-1"),
        ({"epoch": True}, "epoch=True"),
        ({"energy_joules": float("nan")}, "energy_joules=nan"),
        ({"launch_id": ""}, "launch_id=''"),
        ({"job_id": None}, "job_id=None"),
    ],
)
def test_invalid_state(grpc_addr: str, change: State, named: str) -> None:
    """An invalid state is refused; the error names the field and its value."""
    bso = BatchSizeOptimizer(grpc_addr, job_spec(), monitor=StepMonitor())
    _, state = preempted(grpc_addr)
    with pytest.raises(ResumeError) as caught:
        bso.load_state_dict(state | change)
    assert named in str(caught.value)
    with pytest.raises(ResumeError):
        bso.load_state_dict({})


@pytest.fixture
def launched() -> Iterator[Callable[[LiveServer, Path], subprocess.Popen[str]]]:
    """Starts processes that save a checkpoint after every second epoch; none outlives its test."""
    with ExitStack() as after:

        def start(server: LiveServer, checkpoint: Path) -> subprocess.Popen[str]:
            pipe = subprocess.PIPE
            command = [sys.executable, "-m", "tests.client.training.checkpointing", server.address, str(checkpoint)]
            process = after.enter_context(subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True))
            after.callback(process.kill)
            return process

        yield start


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM])
def test_process_that_is_restarted(
    server: LiveServer,
    tmp_path: Path,
    launched: Callable[[LiveServer, Path], subprocess.Popen[str]],
    end: signal.Signals,
) -> None:
    """A process that was killed between two checkpoints continues, when restarted, with the same trial and sums."""
    checkpoint = tmp_path / "checkpoint.json"
    first = launched(server, checkpoint)
    for epoch in (1, 2, 3):
        assert read_line(first) == f"trial 1 epoch {epoch}"
        send_line(first)
    assert read_line(first) == "trial 1 epoch 4"
    os.kill(first.pid, end)
    assert ended(first)[0] == -end
    with Client(server.address) as client:
        (before,) = client.trials("test-checkpoints")
        assert (before.end_reason == v1.END_REASON_PREEMPTED) == (end == signal.SIGTERM)
        assert (before.newest.epoch, before.newest.energy_joules) == (3, 3 * JOULES)
        second = launched(server, checkpoint)
        for epoch in (3, 4, 5):
            assert read_line(second) == f"trial 1 epoch {epoch}"
            send_line(second)
        assert read_line(second) == "target reached"
        assert ended(second) == (0, "")
        (after,) = client.trials("test-checkpoints")
        assert epochs(client, after.id) == [1, 2, 3, 4, 5]
    assert (after.id, after.end_reason) == (before.id, v1.END_REASON_TARGET_REACHED)
    # Epoch 3 was trained twice.
    assert (after.newest.time_seconds, after.newest.energy_joules) == (6, 6 * JOULES)


STATE = SavedTrial("job", "request", 1, 16, 10**18, Sums(1, 2.0, 3.0)).state()
HUGE = 10**5000


@pytest.mark.parametrize(
    "change",
    [
        *({name: HUGE} for name in STATE if name not in ("job_id", "launch_id", "version")),
        {"batch_size": 2**31},
        {"trial_number": 1.0},
        {"start_time_nanoseconds": 253_402_300_800 * 10**9},
        {"job_id": "\udcff"},
        {"launch_id": 5},
        {"time_seconds": float("inf")},
        {"energy_joules": "3"},
        {"epoch": True},
        {"version": [1]},
        {"version": HUGE},
        {"version": "x" * 100_000},
    ],
)
def test_state_that_no_trial_has(change: dict[str, object]) -> None:
    """A value that a damaged checkpoint may have is refused by its name, at however many digits."""
    with pytest.raises(ResumeError, match=next(iter(change))) as refused:
        SavedTrial.from_state({**STATE, **change})
    assert len(str(refused.value)) < 300


def test_epochs_after_a_rewind_are_not_reported_again(server: LiveServer) -> None:
    """A trainer that goes back to an earlier epoch trains on in the same trial; only new epochs are reported."""
    bso = begun(server.address)
    for metric in (0.1, 0.2, 0.3):
        bso.on_evaluate(metric)
    running_trial(bso).rewind(1)
    assert bso.last_epoch == 1
    for metric in (0.4, 0.5, 0.6):
        bso.on_evaluate(metric)
    bso.close()
    with Client(server.address) as client:
        measured = list(client.measurements(bso.trial))
    assert [(each.epoch, each.metric) for each in measured] == [(1, 0.1), (2, 0.2), (3, 0.3), (4, 0.6)]
    assert measured[-1].energy_joules == pytest.approx(6 * JOULES)
