"""The loop over epochs that makes the calls of a training."""

from __future__ import annotations

import logging
import signal
from collections.abc import Callable
from typing import Any

import pytest
from wattwise import (
    BatchSizeOptimizer,
    Client,
    InvalidArgumentError,
    OperationOrderError,
    TrainFailError,
    v1,
)

from tests.client.conftest import Start
from tests.client.training.script import JOULES, StepMonitor, begun, ended, epochs, job_spec, said, the_trial
from tests.live_server import LiveServer
from tests.waiting import wait_until


def training(address: str, **given: Any) -> BatchSizeOptimizer:
    """A training that has not asked for anything."""
    return BatchSizeOptimizer(address, job_spec(**given), monitor=StepMonitor())


def found(address: str, bso: BatchSizeOptimizer) -> v1.Trial:
    """The trial as the server has it."""
    with Client(address) as client:
        return client.get_trial(bso.trial.id).trial


def test_loop_makes_all_the_calls(grpc_addr: str) -> None:
    """The loop asks for the batch size, opens the window, counts epochs from 1 and ends at the target."""
    bso = training(grpc_addr)
    seen = []
    for epoch in bso.epochs():
        seen.append(epoch)
        bso.on_evaluate(0.25 * epoch)
    assert seen == [1, 2, 3, 4]
    assert bso.target_reached
    trial = found(grpc_addr, bso)
    assert (trial.end_reason, trial.energy_joules) == (v1.END_REASON_TARGET_REACHED, 4 * JOULES)


def test_loop_goes_on_where_calls_were_made_before(grpc_addr: str) -> None:
    """A training that has its batch size and its window, and some epochs, goes on with them."""
    bso = begun(grpc_addr)
    bso.on_evaluate(0.1)
    seen = []
    for epoch in bso.epochs(5):
        seen.append(epoch)
        bso.on_evaluate(0.4 * epoch)
    assert seen == [2, 3]
    with Client(grpc_addr) as client:
        assert epochs(client, bso.trial) == [1, 2, 3]


def test_missed_target_is_raised_once(grpc_addr: str) -> None:
    """on_evaluate raises at the job's last epoch; who goes on nevertheless just leaves the loop."""
    bso = training(grpc_addr, max_epochs=2)
    seen, failures = [], 0
    for epoch in bso.epochs():
        seen.append(epoch)
        try:
            bso.on_evaluate(0.1)
        except TrainFailError:
            failures += 1
    assert (seen, failures) == ([1, 2], 1)
    assert list(bso.epochs()) == []


def test_stop_in_mid_epoch_ends_the_loop(grpc_addr: str) -> None:
    """A stop that the server pushes is raised by the loop itself where no metric follows."""
    bso = training(grpc_addr)
    seen = []

    def deleted_meanwhile() -> None:
        for epoch in bso.epochs():
            seen.append(epoch)
            with Client(grpc_addr) as client:
                client.delete_job(bso.job.spec.job_id)
            wait_until(lambda: bso.training_finished)

    with pytest.raises(TrainFailError, match="was deleted"):
        deleted_meanwhile()
    assert seen == [1]


def test_forgotten_metric(grpc_addr: str) -> None:
    """An epoch that passes without on_evaluate is an error that says what to add."""
    with training(grpc_addr) as bso:
        loop = bso.epochs()
        assert next(loop) == 1
        bso.on_evaluate(0.1)
        assert next(loop) == 2
        with pytest.raises(OperationOrderError, match=r"epoch 2 passed.*on_evaluate\(metric\)"):
            next(loop)


def test_second_metric_of_an_epoch(grpc_addr: str) -> None:
    """on_evaluate again in the same turn is an error that says so, reports nothing, and the loop can go on."""
    with training(grpc_addr) as bso:
        for epoch in bso.epochs(2):
            bso.on_evaluate(0.1)
            with pytest.raises(OperationOrderError, match=rf"epoch {epoch} has its metric already.*once in every turn"):
                bso.on_evaluate(0.2)
    assert (bso.last_epoch, found(grpc_addr, bso).last_epoch) == (2, 2)


def test_calls_of_ones_own_after_the_loop(grpc_addr: str) -> None:
    """A loop that an exception left holds nobody to its turns."""

    def crash(bso: BatchSizeOptimizer) -> None:
        for _ in bso.epochs():
            bso.on_evaluate(0.1)
            raise MemoryError

    with training(grpc_addr) as bso:
        with pytest.raises(MemoryError):
            crash(bso)
        bso.on_evaluate(0.2)
        assert bso.last_epoch == 2


def test_second_metric_once_training_is_over(grpc_addr: str) -> None:
    """A second call does nothing in the turn that ends the trial, as any call after the end."""
    bso = training(grpc_addr)
    for _ in bso.epochs():
        bso.on_evaluate(0.95)
        bso.on_evaluate(0.1)
    assert (bso.target_reached, bso.last_epoch) == (True, 1)


def _by_break(bso: BatchSizeOptimizer) -> None:
    for epoch in bso.epochs():
        bso.on_evaluate(0.1)
        if epoch == 2:
            break


def _by_return(bso: BatchSizeOptimizer) -> int:
    for number, epoch in enumerate(bso.epochs()):
        bso.on_evaluate(0.1)
        if epoch == 2:
            return number
    return -1


def _by_inner_loop(bso: BatchSizeOptimizer) -> None:
    for epoch in bso.epochs():
        bso.on_evaluate(0.1)
        for batch in range(3):
            if epoch == 2 and batch == 1:
                break
        else:
            continue
        break


@pytest.mark.parametrize("leave", [_by_break, _by_return, _by_inner_loop])
def test_leaving_early_ends_the_trial(grpc_addr: str, leave: Callable[[BatchSizeOptimizer], object]) -> None:
    """A loop that is left by choice ends its trial as completed at once."""
    bso = training(grpc_addr)
    leave(bso)
    assert bso.training_finished
    trial = found(grpc_addr, bso)
    assert (trial.end_reason, trial.last_epoch) == (v1.END_REASON_COMPLETED, 2)


def _run_out_of_memory(bso: BatchSizeOptimizer) -> None:
    for _ in bso.epochs():
        raise MemoryError


def test_exception_in_the_loop_leaves_the_trial_to_who_catches_it(grpc_addr: str) -> None:
    """An exception that the trainer handles ends nothing, and the loop can be taken up again."""
    bso = training(grpc_addr)
    with pytest.raises(MemoryError):
        _run_out_of_memory(bso)
    assert found(grpc_addr, bso).status == v1.TRIAL_STATUS_DISPATCHED
    for epoch in bso.epochs():
        bso.on_evaluate(0.5 * epoch)
    assert found(grpc_addr, bso).end_reason == v1.END_REASON_TARGET_REACHED


def test_exception_that_leaves_the_loop_and_the_block(grpc_addr: str) -> None:
    """An exception that leaves the loop within a `with` block is why the trial ended."""
    with pytest.raises(MemoryError), training(grpc_addr) as bso:
        _run_out_of_memory(bso)
    assert found(grpc_addr, bso).end_reason == v1.END_REASON_OUT_OF_MEMORY


@pytest.mark.parametrize(
    ("end", "status", "reason"),
    [
        ("loop-out-of-memory", 1, v1.END_REASON_OUT_OF_MEMORY),
        ("loop-crash", 1, v1.END_REASON_ERROR),
        ("loop-wait", -signal.SIGTERM, v1.END_REASON_PREEMPTED),
    ],
)
def test_process_that_ends_within_the_loop(
    server: LiveServer, start: Start, end: str, status: int, reason: v1.EndReason.ValueType
) -> None:
    """An exception that leaves the process from within the loop, and SIGTERM, end the trial for what they are."""
    process = start(end)
    if end == "loop-wait":
        assert said(process) == "in the loop"
        process.terminate()
    assert ended(process)[0] == status
    assert the_trial(server).end_reason == reason


def test_shorter_loop_is_warned_of(grpc_addr: str, caplog: pytest.LogCaptureFixture) -> None:
    """A loop of fewer epochs than the job has ends its trial without a decision, and says so."""
    bso = training(grpc_addr)
    for _ in bso.epochs(2):
        bso.on_evaluate(0.1)
    assert found(grpc_addr, bso).end_reason == v1.END_REASON_COMPLETED
    (text,) = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert "over after epoch 2" in text


def test_last_epoch_is_reached_without_a_server(server: LiveServer) -> None:
    """While the server is away the loop ends at the job's last epoch, as on_evaluate does."""
    bso = training(server.address, max_epochs=2)
    loop = bso.epochs()
    assert next(loop) == 1
    server.kill()
    bso.on_evaluate(0.1)
    assert next(loop) == 2
    with pytest.raises(TrainFailError, match="while the server is away"):
        bso.on_evaluate(0.1)
    assert list(loop) == []
    server.start()
    bso.close()


@pytest.mark.parametrize("epochs", [0, -1, 2.5, True, "3"])
def test_number_of_epochs_that_is_none(grpc_addr: str, epochs: Any) -> None:
    """What is no number of epochs is refused before anything is trained."""
    with training(grpc_addr) as bso, pytest.raises(InvalidArgumentError, match="give a whole number from 1"):
        next(bso.epochs(epochs))
