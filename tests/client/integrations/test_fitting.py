"""`fit_attempts` without any trainer."""

from __future__ import annotations

import logging
import weakref

import pytest
from wattwise import Attempt, BatchSizeOptimizer, Client, fit_attempts, v1
from wattwise.errors import TrainFailError

from tests.client.training.script import StepMonitor, job_spec


class Model:
    """Stands for something large; it refers to itself, like a model and its optimizer do."""

    def __init__(self) -> None:
        self.itself = self


def launched(address: str) -> BatchSizeOptimizer:
    """A launch that has no trial yet."""
    job = job_spec(max_epochs=1, default_batch_size=32, policy="knowledge_gradient")
    return BatchSizeOptimizer(address, job, monitor=StepMonitor())


def end_reasons(address: str, bso: BatchSizeOptimizer) -> list[v1.EndReason.ValueType]:
    """Why the job's trials ended, by number."""
    with Client(address) as client:
        return [trial.end_reason for trial in client.trials(bso.trial.job_id)]


@pytest.mark.usefixtures("caplog")
def test_model_is_released_before_the_next_call(grpc_addr: str) -> None:
    """Neither a miss nor memory that runs out keeps the earlier model alive; the last one is returned."""
    bso, models = launched(grpc_addr), list[weakref.ref[Model]]()

    def fit(attempt: Attempt) -> Model:
        assert [each() for each in models] == [None] * (attempt.number - 1)
        model = Model()
        models.append(weakref.ref(model))
        if attempt.number == 1:
            raise MemoryError
        for _ in attempt.epochs():
            attempt.on_evaluate(0.95 if attempt.number == 3 else 0.1)
        return model

    assert fit_attempts(bso, fit) is models[-1]()
    assert end_reasons(grpc_addr, bso) == [
        v1.END_REASON_OUT_OF_MEMORY,
        v1.END_REASON_MAX_EPOCHS,
        v1.END_REASON_TARGET_REACHED,
    ]


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (ZeroDivisionError(), v1.END_REASON_ERROR),
        (SystemExit(3), v1.END_REASON_ERROR),
        (KeyboardInterrupt(), v1.END_REASON_PREEMPTED),
    ],
)
def test_exception_in_fit(grpc_addr: str, error: BaseException, reason: v1.EndReason.ValueType) -> None:
    """An exception other than memory that runs out ends the trial with its reason and is raised; no attempt follows."""
    bso = launched(grpc_addr)

    def fit(attempt: Attempt) -> None:
        next(attempt.epochs())
        raise error

    with pytest.raises(type(error)):
        fit_attempts(bso, fit)
    assert end_reasons(grpc_addr, bso) == [reason]


@pytest.mark.parametrize(
    ("policy", "last"),
    [
        ("knowledge_gradient", "missed"),
        ("knowledge_gradient", "out of memory"),
        # Its default misses, so that no batch size is left.
        ("pruning_gts", "missed"),
    ],
)
def test_best_of_several_misses(grpc_addr: str, policy: str, last: str, caplog: pytest.LogCaptureFixture) -> None:
    """However the attempts end, the result of the best one is returned, with a warning."""
    job = job_spec(max_epochs=1, policy=policy, batch_sizes=[8, 16, 32], default_batch_size=8)
    bso = BatchSizeOptimizer(grpc_addr, job, monitor=StepMonitor())

    def fit(attempt: Attempt) -> str:
        for _ in attempt.epochs():
            if attempt.number == 2 and last == "out of memory":
                raise MemoryError
            attempt.on_evaluate(0.5 / attempt.number)
        return f"model {attempt.number}"

    with caplog.at_level(logging.WARNING, "wattwise"):
        assert fit_attempts(bso, fit, max_tries=2, keep_best=True) == "model 1"
    assert "attempt 1 returned is kept, whose metric was 0.5" in caplog.records[-1].getMessage()


@pytest.mark.parametrize(
    ("metrics", "exhausted", "kept"),
    [
        ([0.5, 0.8, 0.1], 2, 1),
        ([0.5, 0.8, 0.6], 2, 3),
        ([0.8, 0.5, 0.1], 1, 2),
        ([0.5, 0.1, 0.8], 3, 1),
    ],
)
def test_best_attempt_without_a_result(
    grpc_addr: str, metrics: list[float], exhausted: int, kept: int, caplog: pytest.LogCaptureFixture
) -> None:
    """If the memory runs out in the attempt with the best metric, the best of the other results is returned."""
    job = job_spec(max_epochs=2, policy="knowledge_gradient", batch_sizes=[8, 16, 32], default_batch_size=32)
    bso = BatchSizeOptimizer(grpc_addr, job, monitor=StepMonitor())

    def fit(attempt: Attempt) -> str:
        for epoch in attempt.epochs():
            if attempt.number == exhausted and epoch == 2:
                raise MemoryError
            attempt.on_evaluate(metrics[attempt.number - 1])
        return f"model {attempt.number}"

    with caplog.at_level(logging.WARNING, "wattwise"):
        assert fit_attempts(bso, fit, max_tries=3, keep_best=True) == f"model {kept}"
    warning = f"attempt {kept} returned is kept, whose metric was {metrics[kept - 1]:g} in epoch 1"
    assert warning in caplog.records[-1].getMessage()
    assert bso.best == (exhausted, 1, 0.8)


def test_error_in_fit_after_a_miss(grpc_addr: str) -> None:
    """A bug in a later attempt is raised, even if a result is kept."""
    bso = launched(grpc_addr)

    def fit(attempt: Attempt) -> str:
        for _ in attempt.epochs():
            if attempt.number == 2:
                raise ZeroDivisionError
            attempt.on_evaluate(0.5)
        return "model"

    with pytest.raises(ZeroDivisionError):
        fit_attempts(bso, fit, keep_best=True)


def test_fit_that_ends_early(grpc_addr: str) -> None:
    """A fit that returns before its trial is decided is a failed attempt."""
    bso = launched(grpc_addr)
    with pytest.raises(TrainFailError, match="on_evaluate"):
        fit_attempts(bso, lambda _: None, max_tries=2)
    assert end_reasons(grpc_addr, bso) == [v1.END_REASON_COMPLETED] * 2
