"""Several trials in one process, until one reaches the target."""

from __future__ import annotations

import json
import logging
import math
import signal
from collections.abc import Iterator
from typing import Any

import pytest
from wattwise import Attempt, BatchSizeOptimizer, Client, EndReason, fit_attempts, v1
from wattwise.errors import (
    InvalidArgumentError,
    NoBatchSizeLeftError,
    OperationOrderError,
    ResumeError,
    ServerUnavailableError,
    TrainFailError,
)

from tests.client.conftest import Start
from tests.client.training.script import JOB_ID, StepMonitor, ended, job_spec, read_line
from tests.live_server import LiveServer
from tests.waiting import wait_until
from tests.watched import WatchedServer


def launched(address: str, **given: Any) -> BatchSizeOptimizer:
    """A launch that has no trial yet."""
    job = job_spec(**({"max_epochs": 2, "policy": "knowledge_gradient"} | given))
    return BatchSizeOptimizer(address, job, monitor=StepMonitor())


def trials(address: str, bso: BatchSizeOptimizer) -> list[v1.Trial]:
    """The trials of the job, by number."""
    with Client(address) as client:
        return sorted(client.trials(bso.trial.job_id), key=lambda trial: trial.id.trial_number)


def train(attempt: Attempt, metric: float) -> list[int]:
    """Trains until the trial is over; returns the epochs."""
    trained = []
    for epoch in attempt.epochs():
        trained.append(epoch)
        attempt.on_evaluate(metric)
    return trained


def missing(bso: BatchSizeOptimizer, max_tries: int) -> None:
    """Trains attempts that miss the target."""
    for attempt in bso.attempts(max_tries):
        train(attempt, 0.1)


def raising(bso: BatchSizeOptimizer, error: BaseException, max_tries: int = 3) -> None:
    """Raises in a `with attempt:` block."""
    for attempt in bso.attempts(max_tries):
        with attempt:
            raise error


def test_miss_is_followed_by_another_trial(grpc_addr: str) -> None:
    """Each attempt is a trial with its own request, number and seed offset; the loop ends at the target."""
    bso, seen = launched(grpc_addr), []
    for attempt in bso.attempts():
        trained = train(attempt, 0.95 if attempt.number == 3 else 0.1)
        seen.append((attempt.number, attempt.seed_offset, attempt.batch_size, attempt.trial.launch_id, trained))
    assert [(number, offset, epochs) for number, offset, _, _, epochs in seen] == [
        (1, 0, [1, 2]),
        (2, 1, [1, 2]),
        (3, 2, [1]),
    ]
    assert len({request for _, _, _, request, _ in seen}) == 3
    assert bso.target_reached
    found = trials(grpc_addr, bso)
    assert [trial.batch_size for trial in found] == [size for _, _, size, _, _ in seen]
    assert [trial.end_reason for trial in found] == [
        *[v1.END_REASON_MAX_EPOCHS] * 2,
        v1.END_REASON_TARGET_REACHED,
    ]


def test_every_attempt_passes_the_same_examples(grpc_addr: str) -> None:
    """The steps of an attempt, and of the optimizer during it, follow its batch size."""
    bso, seen = launched(grpc_addr), {}
    for attempt in bso.attempts():
        seen[attempt.batch_size] = attempt.steps(6400)
        assert bso.steps(6400) == attempt.steps(6400)
        train(attempt, 0.95 if attempt.number == 2 else 0.1)
    assert len(seen) == 2
    assert all(size * steps == 6400 for size, steps in seen.items())


def test_target_in_the_first_attempt(grpc_addr: str) -> None:
    """A launch whose first trial reaches the target trains no other."""
    bso = launched(grpc_addr)
    assert [train(attempt, 0.95) for attempt in bso.attempts()] == [[1]]
    assert len(trials(grpc_addr, bso)) == 1


def test_too_many_misses(grpc_addr: str) -> None:
    """After `max_tries` misses the loop raises TrainFailError with the last decision and with advice."""
    bso = launched(grpc_addr)
    with pytest.raises(TrainFailError, match="raise max_tries") as caught:
        missing(bso, max_tries=2)
    assert caught.value.decision == bso.decision
    assert [trial.end_reason for trial in trials(grpc_addr, bso)] == [v1.END_REASON_MAX_EPOCHS] * 2


@pytest.mark.thorough
def test_advice_of_the_server(grpc_addr: str) -> None:
    """Once every batch size has missed, the error has the advice of the server."""
    bso = launched(grpc_addr)
    with pytest.raises(TrainFailError) as caught:
        missing(bso, max_tries=20)
    with Client(grpc_addr) as client:
        advice = client.get_job(bso.trial.job_id).details.advice
    assert advice
    assert advice in str(caught.value)


def test_advice_after_crashes(grpc_addr: str) -> None:
    """A launch whose attempts all end undecided gets the server's advice, once."""
    bso = launched(grpc_addr)
    with pytest.raises(TrainFailError) as caught:
        for _ in bso.attempts(max_tries=3):
            pass
    with Client(grpc_addr) as client:
        advice = client.get_job(bso.trial.job_id).details.advice
    assert advice
    assert str(caught.value).endswith(f"; {advice}")


def test_wording_of_a_miss(grpc_addr: str) -> None:
    """The error counts the attempts, if there are several, and ends with one piece of advice."""
    for tries, counted in ((1, ""), (2, " in 2 attempts; the last")):
        bso = launched(grpc_addr)
        with pytest.raises(TrainFailError) as caught:
            missing(bso, max_tries=tries)
        assert bso.decision is not None
        assert str(caught.value) == (
            f"training is over and the target was not reached{counted}: {bso.decision.message}; raise max_tries: the "
            "server takes the misses into account"
        )


def test_job_without_a_batch_size_left(grpc_addr: str) -> None:
    """If no batch size is left after a miss, the loop raises the error that says so."""
    bso = launched(grpc_addr, batch_sizes=[16], policy="pruning_gts")
    with pytest.raises(NoBatchSizeLeftError):
        missing(bso, max_tries=2)
    assert bso.training_finished


def test_healthy_attempts_are_not_refused(watched: WatchedServer) -> None:
    """Whatever batch sizes the attempts have, the server refuses no call of theirs."""
    bso = launched(watched.address)
    with pytest.raises(TrainFailError):
        missing(bso, 4)
    assert len({trial.batch_size for trial in trials(watched.address, bso)}) > 2
    assert watched.events("call refused") == []


def test_last_attempt_that_stops_early(grpc_addr: str) -> None:
    """The error after an attempt that was stopped early says to let it go on."""
    bso = BatchSizeOptimizer(grpc_addr, job_spec(), monitor=StepMonitor())

    def fit(attempt: Attempt) -> None:
        next(attempt.epochs())
        attempt.on_evaluate(0.1)

    with pytest.raises(TrainFailError, match="early stopping"):
        fit_attempts(bso, fit, max_tries=1)


def test_attempt_without_a_decision(grpc_addr: str, caplog: pytest.LogCaptureFixture) -> None:
    """A body that ends before the trial is decided ends it as stopped early, closes its window, and misses."""
    monitor = StepMonitor()
    bso = BatchSizeOptimizer(grpc_addr, job_spec(), monitor=monitor)
    for attempt in bso.attempts():
        assert len(monitor.open) == 0
        for _ in attempt.epochs():
            attempt.on_evaluate(0.1 if attempt.number == 1 else 0.95)
            break
    assert not monitor.open
    assert [trial.end_reason for trial in trials(grpc_addr, bso)] == [
        v1.END_REASON_STOPPED_EARLY,
        v1.END_REASON_TARGET_REACHED,
    ]
    misses = [record.args for record in caplog.records if record.levelno == logging.WARNING]
    # That it stops, and that the attempt missed.
    assert [args[0] for args in misses if isinstance(args, tuple)] == [1, 1]


def test_undecided_attempts_only(grpc_addr: str) -> None:
    """A launch whose attempts all end without a decision raises TrainFailError; it names the end reason."""
    bso = launched(grpc_addr)
    with pytest.raises(TrainFailError, match="without a metric"):
        for _ in bso.attempts(max_tries=2):
            pass


def test_calls_of_the_optimizer_work_on_the_current_attempt(grpc_addr: str) -> None:
    """The optimizer's own calls, which callbacks use, neither raise a miss nor touch an earlier trial."""
    bso = launched(grpc_addr)
    for attempt in bso.attempts():
        assert bso.get_batch_size() == attempt.batch_size
        assert bso.trial == attempt.trial
        for _ in bso.epochs():
            bso.on_evaluate(0.1 if attempt.number < 3 else 0.95)
    assert [trial.newest.epoch for trial in trials(grpc_addr, bso)] == [2, 2, 1]


def test_attempt_that_is_over(grpc_addr: str) -> None:
    """An attempt cannot be used once the next one has begun."""
    with launched(grpc_addr) as bso:
        loop = bso.attempts()
        first = next(loop)
        train(first, 0.1)
        next(loop)
        with pytest.raises(OperationOrderError, match="attempt 1"):
            first.on_evaluate(0.95)
        with pytest.raises(OperationOrderError, match="attempt 1"):
            next(first.epochs())


def _out_of_memory_at_first(bso: BatchSizeOptimizer) -> Iterator[int]:
    for attempt in bso.attempts(max_tries=2):
        with attempt:
            if attempt.number == 1:
                raise MemoryError
            train(attempt, 0.95)
        yield attempt.batch_size


def test_out_of_memory_in_the_block(grpc_addr: str, caplog: pytest.LogCaptureFixture) -> None:
    """In a `with attempt:` block a trial that runs out of memory ends so, and a smaller batch size follows."""
    bso = launched(grpc_addr, default_batch_size=32)
    sizes = list(_out_of_memory_at_first(bso))
    assert sizes[0] == 32
    assert sizes[1] < 32
    assert [trial.end_reason for trial in trials(grpc_addr, bso)] == [
        v1.END_REASON_OUT_OF_MEMORY,
        v1.END_REASON_TARGET_REACHED,
    ]
    # It is no miss, and the exception, which refers to the model, is not kept.
    (warning,) = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert isinstance(warning.args, tuple)
    assert warning.args[:4] == (1, 2, 32, "MemoryError")


def test_out_of_memory_in_the_last_attempt(grpc_addr: str, caplog: pytest.LogCaptureFixture) -> None:
    """Memory that runs out in the last attempt is raised, after a warning with the server's advice."""
    bso = launched(grpc_addr, batch_sizes=[16])
    with pytest.raises(MemoryError):
        raising(bso, MemoryError(), 1)
    with Client(grpc_addr) as client:
        advice = client.get_job(bso.trial.job_id).details.advice
    (warning,) = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert isinstance(warning.args, tuple)
    assert warning.args[-1] == advice != ""


@pytest.mark.parametrize(
    ("error", "tries", "reason"),
    [
        (MemoryError(), 1, v1.END_REASON_OUT_OF_MEMORY),
        (ZeroDivisionError(), 3, v1.END_REASON_ERROR),
        (KeyboardInterrupt(), 3, v1.END_REASON_PREEMPTED),
    ],
)
def test_exception_that_leaves_the_block(
    grpc_addr: str, error: BaseException, tries: int, reason: v1.EndReason.ValueType
) -> None:
    """A bug, Ctrl-C, and memory that runs out in the last attempt end the trial with their reason and are raised."""
    bso = launched(grpc_addr)
    with pytest.raises(type(error)):
        raising(bso, error, tries)
    assert [trial.end_reason for trial in trials(grpc_addr, bso)] == [reason]


def test_out_of_memory_once_the_target_is_reached(grpc_addr: str) -> None:
    """An error after the target is raised: the body has no complete model, but there is no reason to train again."""
    bso = launched(grpc_addr)

    def train_and_export() -> None:
        for attempt in bso.attempts():
            with attempt:
                train(attempt, 0.95)
                raise MemoryError

    with pytest.raises(MemoryError):
        train_and_export()
    assert [trial.end_reason for trial in trials(grpc_addr, bso)] == [v1.END_REASON_TARGET_REACHED]


def test_break_leaves_the_trial_running(grpc_addr: str) -> None:
    """Leaving the loop by `break` does not end the trial; its missed target is raised again then."""
    bso = launched(grpc_addr)
    for attempt in bso.attempts():
        next(attempt.epochs())
        break
    assert trials(grpc_addr, bso)[0].status == v1.TRIAL_STATUS_RUNNING
    bso.on_evaluate(0.1)
    with pytest.raises(TrainFailError):
        bso.on_evaluate(0.1)
    assert len(trials(grpc_addr, bso)) == 1


def test_representation(grpc_addr: str) -> None:
    """An optimizer and an attempt show their trial."""
    bso = BatchSizeOptimizer(grpc_addr, job_spec(), monitor=StepMonitor())
    assert repr(bso).endswith("trial=None, decision=None)")
    for attempt in bso.attempts(max_tries=1):
        for _ in attempt.epochs():
            attempt.on_evaluate(0.95)
        assert repr(attempt) == f"Attempt(number=1, trial={bso.trial!r})"
    named = f"{grpc_addr!r}, job_id={bso.trial.job_id!r}"
    assert repr(bso) == f"BatchSizeOptimizer({named}, trial={bso.trial!r}, decision={bso.decision!r})"


def test_exception_without_a_block_ends_the_trial_with_the_launch(grpc_addr: str) -> None:
    """An exception that leaves the loop and a `with bso:` block gives the trial its end reason."""

    def run_out_of_memory(bso: BatchSizeOptimizer) -> None:
        for _ in bso.attempts():
            raise MemoryError

    with pytest.raises(MemoryError), launched(grpc_addr) as bso:
        run_out_of_memory(bso)
    assert [trial.end_reason for trial in trials(grpc_addr, bso)] == [v1.END_REASON_OUT_OF_MEMORY]


def test_first_attempt_is_the_trial_that_runs(grpc_addr: str) -> None:
    """A batch size that was asked for before the loop is that of the first attempt."""
    bso = launched(grpc_addr)
    bso.get_batch_size()
    (number,) = [attempt.trial.number for attempt in bso.attempts() if train(attempt, 0.95)]
    assert number == 1


def test_second_loop_is_another_launch(grpc_addr: str) -> None:
    """A loop after one that has ended trains another trial, numbered from 1 again."""
    bso = launched(grpc_addr)
    seen = [attempt.number for _ in range(2) for attempt in bso.attempts() if train(attempt, 0.95)]
    assert (seen, len(trials(grpc_addr, bso))) == ([1, 1], 2)


def test_checkpoint_continues_the_attempt(grpc_addr: str) -> None:
    """The first attempt is the trial of the checkpoint, with its number; another follows if it misses."""
    first = launched(grpc_addr)
    for attempt in first.attempts():
        if attempt.number == 2:
            next(attempt.epochs())
            break
        train(attempt, 0.1)
    first.on_evaluate(0.1)
    state = first.state_dict()
    first.close(EndReason.PREEMPTED)
    again = launched(grpc_addr, job_id=first.trial.job_id)
    again.load_state_dict(state)
    seen = [
        (attempt.number, attempt.trial.number, train(attempt, 0.95 if attempt.number == 3 else 0.1))
        for attempt in again.attempts()
    ]
    assert seen == [(2, 2, [2]), (3, 3, [1])]


def test_checkpoint_keeps_the_best_epoch(grpc_addr: str) -> None:
    """A launch that continues does not replace the best model by a worse one."""
    first = launched(grpc_addr, max_epochs=5)
    first.get_batch_size()
    first.on_train_begin()
    for metric in (0.3, 0.5):
        first.on_evaluate(metric)
    state = first.state_dict()
    first.close(EndReason.PREEMPTED)
    again = launched(grpc_addr, job_id=first.trial.job_id, max_epochs=5)
    again.load_state_dict(json.loads(json.dumps(state)))
    again.get_batch_size()
    again.on_train_begin()
    improved = []
    for metric in (0.4, 0.6):
        again.on_evaluate(metric)
        improved.append(again.improved)
    again.close()
    assert (improved, first.best, again.best) == ([False, True], (1, 2, 0.5), (1, 4, 0.6))
    with pytest.raises(ResumeError, match="best"):
        launched(grpc_addr).load_state_dict(state | {"best_metric": "0.5"})


def test_checkpoint_that_an_attempt_loads(grpc_addr: str) -> None:
    """An attempt whose body loads a checkpoint continues that trial, with the number of its attempt."""
    first = launched(grpc_addr)
    for attempt in first.attempts():
        if attempt.number == 2:
            attempt_state = first.state_dict()
            break
        train(attempt, 0.1)
    first.close(EndReason.PREEMPTED)
    again = launched(grpc_addr, job_id=first.trial.job_id)
    with Client(grpc_addr) as client:
        client.set_pinned_batch_size(first.trial.job_id, first.trial.batch_size)
    numbers: list[tuple[int, int]] = []
    for attempt in again.attempts():
        if not numbers:
            again.load_state_dict(attempt_state)
        numbers.append((attempt.number, attempt.trial.number))
        train(attempt, 0.95 if attempt.number == 3 else 0.1)
    assert numbers == [(2, first.trial.number), (3, first.trial.number + 2)]
    assert attempt.target_reached


def test_checkpoint_that_every_attempt_loads(grpc_addr: str) -> None:
    """The second attempt refuses the checkpoint of the first: otherwise it would continue that trial again."""
    first = launched(grpc_addr)
    first.get_batch_size()
    state = first.state_dict()
    first.close(EndReason.PREEMPTED)
    again = launched(grpc_addr, job_id=first.trial.job_id)

    def loading_always() -> None:
        for attempt in again.attempts():
            with attempt:
                again.load_state_dict(state)
                train(attempt, 0.1)

    with pytest.raises(ResumeError, match="attempt 1, but this is attempt 2"):
        loading_always()
    assert trials(grpc_addr, again)[-1].end_reason == v1.END_REASON_PREEMPTED


def test_checkpoint_of_an_older_client(grpc_addr: str) -> None:
    """A state without the number of an attempt is that of the first."""
    with launched(grpc_addr) as bso:
        bso.get_batch_size()
        state = bso.state_dict()
        bso.close(EndReason.PREEMPTED)
    del state["attempt"]
    again = launched(grpc_addr, job_id=bso.trial.job_id)
    again.load_state_dict(state)
    assert [attempt.number for attempt in again.attempts() if train(attempt, 0.95)] == [1]


@pytest.mark.parametrize("max_tries", [1, 5])
def test_job_that_was_deleted(grpc_addr: str, max_tries: int) -> None:
    """A deleted job is not registered again for another attempt: the loop raises the decision that says so."""
    bso = launched(grpc_addr)

    def deleted_meanwhile() -> None:
        for attempt in bso.attempts(max_tries):
            for _ in attempt.epochs():
                with Client(grpc_addr) as client:
                    client.delete_job(bso.trial.job_id)
                wait_until(lambda: bso.training_finished)

    with pytest.raises(TrainFailError, match="deleted") as caught:
        deleted_meanwhile()
    assert "launch the job again" not in str(caught.value)
    with Client(grpc_addr) as client:
        assert bso.trial.job_id not in {row.job.spec.job_id for row in client.jobs()}


def test_job_that_was_deleted_after_a_miss(grpc_addr: str) -> None:
    """If the job is deleted between two attempts, the error names the miss and says that the job is gone."""
    bso = launched(grpc_addr)

    def deleted_meanwhile() -> None:
        for attempt in bso.attempts():
            train(attempt, 0.1)
            with Client(grpc_addr) as client:
                client.delete_job(bso.trial.job_id)

    with pytest.raises(TrainFailError, match=r"max epochs.*no longer on the server$") as caught:
        deleted_meanwhile()
    assert caught.value.decision == bso.decision


@pytest.mark.parametrize("how", ["decided", "memory", "undecided", "without the server"])
def test_job_that_was_deleted_after_an_attempt(server: LiveServer, how: str) -> None:
    """However the attempt ended, and whether or not the next one knows the server, a deleted job does not come back."""
    bso = launched(server.address, max_epochs=1)

    def deleted_meanwhile() -> None:
        for attempt in bso.attempts(3):
            with attempt:
                if how == "memory":
                    raise MemoryError
                if how == "without the server":
                    server.kill()
                if how != "undecided":
                    for _ in attempt.epochs():
                        attempt.on_evaluate(0.1)
            if how == "without the server":
                server.start()
            bso.close()
            assert attempt.number == 1
            with Client(server.address) as client:
                client.delete_job(bso.trial.job_id)

    with pytest.raises(TrainFailError, match=r"no longer on the server$"):
        deleted_meanwhile()
    with Client(server.address) as client:
        assert list(client.jobs()) == []


def test_job_that_was_deleted_before_a_fallback(server: LiveServer) -> None:
    """An attempt on the fallback batch size does not make the launch forget what the server dispatched before."""
    job = job_spec(max_epochs=1)
    bso = BatchSizeOptimizer(server.address, job, monitor=StepMonitor(), timeout=1.0, fallback="default")
    fallbacks = []

    def deleted_meanwhile() -> None:
        for attempt in bso.attempts(3):
            train(attempt, 0.1)
            bso.close()
            fallbacks.append(attempt.trial.fallback)
            if attempt.number == 1:
                with Client(server.address) as client:
                    client.delete_job(bso.trial.job_id)
                server.kill()
            else:
                server.start()

    with pytest.raises(TrainFailError, match="without the server"):
        deleted_meanwhile()
    assert fallbacks == [False, True]
    with Client(server.address) as client:
        assert list(client.jobs()) == []


def test_database_that_was_lost_after_a_miss(server: LiveServer) -> None:
    """A server that has lost its database gets the job again, and the next attempt delivers."""
    bso = BatchSizeOptimizer(server.address, job_spec(max_epochs=1), monitor=StepMonitor())
    reached = []
    for attempt in bso.attempts():
        train(attempt, 0.95 if attempt.number == 2 else 0.1)
        if attempt.number == 1:
            server.stop()
            server.lose_database()
            server.start()
        reached.append(attempt.target_reached)
    assert reached == [False, True]
    with Client(server.address) as client:
        assert [trial.converged for trial in client.trials(bso.trial.job_id)] == [True]


def test_server_that_is_away_after_a_miss(server: LiveServer) -> None:
    """Without a server there is no further attempt: the loop raises the error that names its address."""
    bso = BatchSizeOptimizer(server.address, job_spec(max_epochs=1), monitor=StepMonitor(), timeout=0.5)

    def killed_meanwhile() -> None:
        for attempt in bso.attempts():
            for _ in attempt.epochs():
                server.kill()
                attempt.on_evaluate(0.1)

    with pytest.raises(ServerUnavailableError, match=server.address):
        killed_meanwhile()


def test_fallback_is_tried_again(server: LiveServer) -> None:
    """Without a server every attempt trains with the fallback; the server then has all of them, with their ends."""
    job = job_spec(max_epochs=1)
    bso = BatchSizeOptimizer(server.address, job, monitor=StepMonitor(), timeout=0.2, fallback="default")
    server.stop()
    seen = []
    for attempt in bso.attempts():
        seen.append((attempt.number, attempt.batch_size, attempt.trial.fallback))
        train(attempt, 0.1 if attempt.number == 1 else 0.95)
    assert seen == [(1, 16, True), (2, 16, True)]
    bso.close()
    server.start()
    with launched(server.address, job_id=job.job_id, max_epochs=1, policy="pruning_gts") as later:
        later.get_batch_size()
        ends = {trial.end_reason for trial in trials(server.address, later) if trial.status != v1.TRIAL_STATUS_RUNNING}
    assert ends == {v1.END_REASON_MAX_EPOCHS, v1.END_REASON_TARGET_REACHED}


@pytest.mark.parametrize("tries", [0, -1, 2.5, True, "3"])
def test_invalid_number_of_tries(grpc_addr: str, tries: Any) -> None:
    """A number of tries that is not a positive integer is refused before a trial begins."""
    bso = launched(grpc_addr)
    with pytest.raises(InvalidArgumentError, match=r"max_tries=.* 1 or more, or omit it for 5"):
        next(bso.attempts(tries))
    with pytest.raises(OperationOrderError):
        _ = bso.trial


def test_process_that_is_terminated_in_a_later_attempt(server: LiveServer, start: Start) -> None:
    """SIGTERM ends the current attempt as preempted, and no other."""
    process = start("attempts-wait")
    assert read_line(process) == "in attempt 2"
    process.terminate()
    assert ended(process)[0] == -signal.SIGTERM
    with Client(server.address) as client:
        found = {trial.id.trial_number: trial.end_reason for trial in client.trials(JOB_ID)}
    assert found == {1: v1.END_REASON_STOPPED_EARLY, 2: v1.END_REASON_PREEMPTED}


def test_best_epoch_over_all_attempts(grpc_server: LiveServer) -> None:
    """`best` and `improved` follow the metrics of all attempts; NaN is never the best."""
    spec = job_spec(max_epochs=3, policy="knowledge_gradient")
    bso = BatchSizeOptimizer(grpc_server.address, spec, monitor=StepMonitor())
    assert not bso.improved
    metrics = iter([math.nan, 0.3, 0.2, 0.1, 0.6, 0.6])
    improved: list[bool] = []

    def train() -> None:
        for attempt in bso.attempts(2):
            for _ in attempt.epochs():
                attempt.on_evaluate(next(metrics))
                improved.append(bso.improved)

    with pytest.raises(TrainFailError):
        train()
    assert bso.best == (2, 2, 0.6)
    assert improved == [False, True, False, False, True, False]
    # Another loop begins again, also with the numbers of its attempts.
    metrics = iter([0.2, 0.1, 0.3, 0.1, 0.1, 0.1])
    improved.clear()
    with pytest.raises(TrainFailError):
        train()
    assert bso.best == (1, 3, 0.3)
    assert improved == [True, False, True, False, False, False]
