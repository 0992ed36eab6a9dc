"""The loop over epochs that makes the calls of a training."""

from __future__ import annotations

import logging
import signal
from collections.abc import Callable
from typing import Any

import pytest
from wattwise import BatchSizeOptimizer, Client, EndReason, v1
from wattwise.errors import InvalidArgumentError, OperationOrderError, TrainFailError

from tests.client.conftest import Start
from tests.client.training.script import JOULES, StepMonitor, begun, ended, epochs, job_spec, read_line, the_trial
from tests.live_server import LiveServer
from tests.waiting import wait_until


def training(address: str, **given: Any) -> BatchSizeOptimizer:
    """A training that has no batch size yet."""
    return BatchSizeOptimizer(address, job_spec(**given), monitor=StepMonitor())


def found(address: str, bso: BatchSizeOptimizer) -> v1.Trial:
    """The trial as the server has it."""
    with Client(address) as client:
        return client.get_trial(bso.trial).trial


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
    assert (trial.end_reason, trial.newest.energy_joules) == (v1.END_REASON_TARGET_REACHED, 4 * JOULES)


def test_steps_of_an_epoch(grpc_addr: str) -> None:
    """`steps` asks for the batch size, and counts its steps over all ranks."""
    with training(grpc_addr) as bso:
        assert bso.steps(1600) == 100
        assert bso.trial.batch_size == 16
        with pytest.raises(InvalidArgumentError):
            bso.steps(0)


def test_loop_continues_after_calls_of_your_own(grpc_addr: str) -> None:
    """A training that has its batch size, its window and some epochs continues with them."""
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
    """on_evaluate raises at the job's last epoch; the loop then ends without another error."""
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


def test_stop_in_the_middle_of_an_epoch_ends_the_loop(grpc_addr: str) -> None:
    """The loop raises a stop that the server pushed if no metric follows."""
    bso = training(grpc_addr)
    seen = []

    def deleted_meanwhile() -> None:
        for epoch in bso.epochs():
            seen.append(epoch)
            with Client(grpc_addr) as client:
                client.delete_job(bso.trial.job.job_id)
            wait_until(lambda: bso.training_finished)

    with pytest.raises(TrainFailError, match="deleted"):
        deleted_meanwhile()
    assert seen == [1]


def test_forgotten_metric(grpc_addr: str) -> None:
    """An epoch that passes without on_evaluate is an error."""
    with training(grpc_addr) as bso:
        loop = bso.epochs()
        assert next(loop) == 1
        bso.on_evaluate(0.1)
        assert next(loop) == 2
        with pytest.raises(OperationOrderError, match=r"epoch 2 .*on_evaluate\(metric\)"):
            next(loop)


def test_second_metric_of_an_epoch(grpc_addr: str) -> None:
    """A second on_evaluate in the same turn is an error and reports nothing, and the loop can continue."""
    with training(grpc_addr) as bso:
        for epoch in bso.epochs():
            bso.on_evaluate(0.1)
            with pytest.raises(OperationOrderError, match=rf"epoch {epoch} .*once"):
                bso.on_evaluate(0.2)
            if epoch == 2:
                break
    assert (bso.last_epoch, found(grpc_addr, bso).newest.epoch) == (2, 2)


def test_calls_of_your_own_after_the_loop(grpc_addr: str) -> None:
    """After an exception has left the loop, on_evaluate ends an epoch per call again."""

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
    """A second call in the turn that ends the trial does nothing, like any call after the end."""
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


LEAVE = [_by_break, _by_return, _by_inner_loop]


@pytest.mark.parametrize("leave", LEAVE)
def test_loop_that_is_left_early_can_be_continued(
    grpc_addr: str, leave: Callable[[BatchSizeOptimizer], object]
) -> None:
    """Leaving the loop by break or return does not end the trial: the next loop continues it."""
    bso = training(grpc_addr)
    leave(bso)
    assert not bso.training_finished
    assert found(grpc_addr, bso).status == v1.TRIAL_STATUS_RUNNING
    seen = []
    for epoch in bso.epochs():
        seen.append(epoch)
        bso.on_evaluate(0.95)
    assert seen == [3]
    assert found(grpc_addr, bso).end_reason == v1.END_REASON_TARGET_REACHED


@pytest.mark.parametrize("leave", LEAVE)
@pytest.mark.parametrize("block", [True, False])
def test_trial_of_a_loop_that_is_left_early_ends_at_close(
    grpc_addr: str, leave: Callable[[BatchSizeOptimizer], object], block: bool
) -> None:
    """After break or return, close or the end of a `with` block ends the trial as stopped early."""
    bso = training(grpc_addr)
    if block:
        with bso:
            leave(bso)
    else:
        leave(bso)
        bso.close()
    assert bso.training_finished
    trial = found(grpc_addr, bso)
    assert (trial.end_reason, trial.newest.epoch) == (v1.END_REASON_STOPPED_EARLY, 2)


def test_metric_after_close(grpc_addr: str, caplog: pytest.LogCaptureFixture) -> None:
    """After close the decision says that training stops, and why; another metric is not reported, with one warning."""
    bso = begun(grpc_addr)
    bso.on_evaluate(0.1)
    bso.close(EndReason.PREEMPTED)
    decision = bso.decision
    assert decision is not None
    assert (decision.stop_train, decision.end_reason, decision.target_reached) == (True, EndReason.PREEMPTED, False)
    caplog.clear()
    for _ in range(2):
        bso.on_evaluate(0.95)
    (warning,) = caplog.messages
    assert decision.message in warning
    assert (bso.decision, bso.last_epoch, found(grpc_addr, bso).newest.epoch) == (decision, 1, 1)


def _run_out_of_memory(bso: BatchSizeOptimizer) -> None:
    for _ in bso.epochs():
        raise MemoryError


def test_exception_that_is_handled_outside_of_the_loop(grpc_addr: str) -> None:
    """An exception that leaves the loop and is handled does not end the trial, and another loop continues it."""
    bso = training(grpc_addr)
    with pytest.raises(MemoryError):
        _run_out_of_memory(bso)
    assert found(grpc_addr, bso).status == v1.TRIAL_STATUS_RUNNING
    for epoch in bso.epochs():
        bso.on_evaluate(0.5 * epoch)
    assert found(grpc_addr, bso).end_reason == v1.END_REASON_TARGET_REACHED


def test_exception_that_leaves_the_loop_and_the_block(grpc_addr: str) -> None:
    """An exception that leaves the loop and the `with` block is the end reason of the trial."""
    with pytest.raises(MemoryError), training(grpc_addr) as bso:
        _run_out_of_memory(bso)
    assert found(grpc_addr, bso).end_reason == v1.END_REASON_OUT_OF_MEMORY


@pytest.mark.parametrize(
    ("end", "status", "reason"),
    [
        ("loop-out-of-memory", 1, v1.END_REASON_OUT_OF_MEMORY),
        ("loop-crash", 1, v1.END_REASON_ERROR),
        ("loop-wait", -signal.SIGTERM, v1.END_REASON_PREEMPTED),
        ("loop-break", 0, v1.END_REASON_STOPPED_EARLY),
    ],
)
def test_process_that_does_not_finish_the_loop(
    server: LiveServer, start: Start, end: str, status: int, reason: v1.EndReason.ValueType
) -> None:
    """An exception and SIGTERM within the loop, and the end of the process after break, give the end reason."""
    process = start(end)
    if end == "loop-wait":
        assert read_line(process) == "in the loop"
        process.terminate()
    assert ended(process)[0] == status
    assert the_trial(server).end_reason == reason


def test_shorter_loop_is_warned_of(grpc_addr: str, caplog: pytest.LogCaptureFixture) -> None:
    """A loop with fewer epochs than the job ends its trial as stopped early, with a warning and the error of a miss."""
    bso = training(grpc_addr)
    with pytest.raises(TrainFailError):
        list(map(lambda _: bso.on_evaluate(0.1), bso.epochs(2)))  # noqa: C417 - one statement
    assert found(grpc_addr, bso).end_reason == v1.END_REASON_STOPPED_EARLY
    (warning,) = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert isinstance(warning.args, tuple)
    assert (warning.args[0], warning.args[2]) == (2, 10)


def test_last_epoch_is_reached_without_a_server(server: LiveServer) -> None:
    """While the server is away, the loop ends at the job's last epoch."""
    bso = training(server.address, max_epochs=2)
    loop = bso.epochs()
    assert next(loop) == 1
    server.kill()
    bso.on_evaluate(0.1)
    assert next(loop) == 2
    with pytest.raises(TrainFailError, match="without the server"):
        bso.on_evaluate(0.1)
    assert list(loop) == []
    server.start()
    bso.close()


@pytest.mark.parametrize("epochs", [0, -1, 2.5, True, "3"])
def test_invalid_number_of_epochs(grpc_addr: str, epochs: Any) -> None:
    """A number of epochs that is not a positive integer is refused before training."""
    with training(grpc_addr) as bso, pytest.raises(InvalidArgumentError, match=r"max_epochs=.* 1 or more"):
        next(bso.epochs(epochs))
