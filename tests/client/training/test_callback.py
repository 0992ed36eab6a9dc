"""The calls of a training loop."""

from __future__ import annotations

import copy
import logging
import math
import signal
import sys
import uuid
from collections.abc import Callable
from dataclasses import FrozenInstanceError, fields, is_dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from google.protobuf.message import Message
from wattwise import BatchSizeOptimizer, Client, Decision, EndReason, EstimateMonitor, v1
from wattwise.decision import decision_of
from wattwise.errors import (
    CredentialsError,
    InvalidArgumentError,
    InvalidJobSpecError,
    InvalidResultError,
    JobDiffersError,
    MetricTypeError,
    MonitorError,
    OperationOrderError,
    ServerUnavailableError,
    TrainFailError,
    WattwiseError,
)
from wattwise.rpc.calls import trial_id
from wattwise.training.optimizer import running_trial

from tests.client.training.script import GPU, JOULES, StepMonitor, begun, job_spec
from tests.live_server import LiveServer
from tests.waiting import wait_until


def test_three_calls_in_a_loop(grpc_addr: str) -> None:
    """A trainer gets its batch size, reports epochs, and finishes when the target is reached."""
    bso = BatchSizeOptimizer(grpc_addr, job_spec(), monitor=StepMonitor())
    assert bso.get_batch_size() == 16
    bso.on_train_begin()
    for epoch in range(10):
        bso.on_evaluate(0.2 * (epoch + 1))
        if bso.training_finished:
            break
    assert epoch == 4
    assert bso.target_reached
    assert bso.decision is not None
    assert (bso.decision.converged, bso.decision.cost) == (True, 5 * JOULES)
    with Client(grpc_addr) as client:
        found = client.get_trial(bso.trial)
        measured = list(client.measurements(bso.trial))
    assert found.trial.end_reason == v1.END_REASON_TARGET_REACHED
    assert [(m.epoch, m.time_seconds, m.energy_joules) for m in measured] == [
        (epoch, epoch, epoch * JOULES) for epoch in range(1, 6)
    ]


def test_evaluating_after_the_end_does_nothing(grpc_addr: str) -> None:
    """Once training is finished on_evaluate neither measures nor reports nor raises."""
    monitor = StepMonitor()
    bso = BatchSizeOptimizer(grpc_addr, job_spec(max_epochs=1), monitor=monitor)
    bso.get_batch_size()
    bso.on_train_begin()
    with pytest.raises(TrainFailError):
        bso.on_evaluate(0.1)
    bso.on_evaluate(0.1)
    assert not monitor.open


def test_missed_target_raises(grpc_addr: str) -> None:
    """A trial that is over without reaching its target raises TrainFailError with the server's decision."""
    bso = begun(grpc_addr, max_epochs=2)
    bso.on_evaluate(0.1)
    with pytest.raises(TrainFailError) as caught:
        bso.on_evaluate(0.2)
    assert caught.value.decision == bso.decision
    assert caught.value.decision.message in str(caught.value)
    with Client(grpc_addr) as client:
        assert client.get_trial(bso.trial).trial.end_reason == v1.END_REASON_MAX_EPOCHS
    assert bso.training_finished
    assert not bso.target_reached


def test_target_reached_over_budget_is_no_failure(grpc_addr: str) -> None:
    """A trial that reaches the target beyond its cost bound has not converged, but on_evaluate does not raise."""
    cheap = begun(grpc_addr)
    cheap.on_evaluate(0.95)
    costly = begun(grpc_addr, job_id=cheap.trial.job_id)
    costly.on_evaluate(0.1)
    costly.on_evaluate(0.2)
    costly.on_evaluate(0.95)
    assert costly.decision is not None
    assert (costly.training_finished, costly.target_reached, costly.decision.converged) == (True, True, False)


def test_order_of_calls(grpc_addr: str) -> None:
    """The error of a call in the wrong order names the call that is missing."""
    bso = BatchSizeOptimizer(grpc_addr, job_spec(), monitor=StepMonitor())
    with pytest.raises(OperationOrderError, match=r"get_batch_size\(\).*on_evaluate\(\)"):
        bso.on_evaluate(0.1)
    with pytest.raises(OperationOrderError, match=r"get_batch_size\(\).*on_train_begin\(\)"):
        bso.on_train_begin()
    with pytest.raises(OperationOrderError, match=r"get_batch_size\(\).*trial"):
        _ = bso.trial
    with bso:
        bso.get_batch_size()
        with pytest.raises(OperationOrderError, match=r"on_train_begin\(\).*on_evaluate\(\)"):
            bso.on_evaluate(0.1)
        bso.on_train_begin()
        with pytest.raises(OperationOrderError, match=r"on_train_begin\(\)"):
            bso.on_train_begin()


def test_asking_twice_is_one_trial(grpc_addr: str) -> None:
    """get_batch_size gives the same batch size however often it is called."""
    with BatchSizeOptimizer(grpc_addr, job_spec(), monitor=StepMonitor()) as bso:
        assert bso.get_batch_size() == bso.get_batch_size() == bso.trial.batch_size
        with Client(grpc_addr) as client:
            assert client.get_job(bso.trial.job.job_id).job.num_trials == 1


def test_infinite_metric_has_not_converged(grpc_addr: str) -> None:
    """A diverged loss is reported as NaN, whichever infinity or NaN it is."""
    with begun(grpc_addr) as bso:
        for metric in (math.inf, -math.inf, math.nan):
            bso.on_evaluate(metric)
        with Client(grpc_addr) as client:
            measured = list(client.measurements(bso.trial))
    assert [math.isnan(m.metric) for m in measured] == [True] * 3


def test_nan_metric_is_warned_of_once(grpc_addr: str, caplog: pytest.LogCaptureFixture) -> None:
    """The first metric that is not finite is warned of, and training continues."""
    with begun(grpc_addr) as bso:
        for metric in (0.1, math.nan, math.inf, math.nan):
            bso.on_evaluate(metric)
        assert not bso.training_finished
        (warning,) = [record for record in caplog.records if record.levelno == logging.WARNING]
        assert warning.args == (2, pytest.approx(math.nan, nan_ok=True))


@pytest.mark.parametrize(
    ("metric", "named"),
    [
        *((None, "None"), ("0.9", "'0.9'"), ([0.9], "list"), (1j, "complex"), (np.ones(2), "ndarray")),
        *((True, "True"), (np.bool_(0), "bool"), (np.array(1, dtype=bool), "ndarray")),
    ],
)
def test_metric_that_is_not_a_number(grpc_addr: str, metric: Any, named: str) -> None:
    """A metric that is not a number raises a TypeError with no other error chained to it, and ends no epoch."""
    with begun(grpc_addr, max_epochs=2) as bso:
        with pytest.raises(MetricTypeError, match=named) as caught:
            bso.on_evaluate(metric)
        assert isinstance(caught.value, TypeError)
        assert caught.value.__cause__ is None
        assert caught.value.__suppress_context__
        bso.on_evaluate(0.1)
        assert not bso.training_finished


@pytest.mark.parametrize(
    ("argument", "error", "named"),
    [
        ({"job": {"job_id": "test-1"}}, InvalidArgumentError, r"dict.*JobSpec\("),
        ({"timeout": "5"}, InvalidArgumentError, "timeout='5'"),
        ({"timeout": math.inf}, InvalidArgumentError, "timeout=inf"),
        ({"report_timeout": -1}, InvalidArgumentError, "report_timeout=-1"),
        ({"report_timeout": None}, InvalidArgumentError, "report_timeout=None"),
        ({"reduce_metric": "avg"}, InvalidArgumentError, "'avg'.*first, mean, sum, min, max"),
        # The secret is not repeated.
        ({"credentials": "wwt_secret"}, CredentialsError, r"^((?!secret).)*str.*Credentials\(((?!secret).)*$"),
        ({"monitor": "nvml"}, MonitorError, r"'nvml'.*NvmlMonitor\(\)"),
        ({"monitor": EstimateMonitor}, MonitorError, r"EstimateMonitor"),
    ],
)
def test_argument_of_the_wrong_type(
    grpc_addr: str, argument: dict[str, Any], error: type[WattwiseError], named: str
) -> None:
    """An argument of the wrong type is named before training, with the right type."""
    usual: dict[str, Any] = {"job": job_spec(gpu=GPU), "monitor": StepMonitor()}
    with pytest.raises(error, match=named):
        BatchSizeOptimizer(grpc_addr, **(usual | argument)).get_batch_size()


@pytest.mark.parametrize("reason", ["error", EndReason.TARGET_REACHED, v1.END_REASON_ERROR])
def test_end_reason_that_a_trainer_must_not_give(grpc_addr: str, reason: Any) -> None:
    """Such a reason is refused, the error names the allowed ones, and the trial is not ended."""
    with begun(grpc_addr) as bso:
        with pytest.raises(InvalidArgumentError, match=r"trainer cannot end .*: use COMPLETED or .* or PREEMPTED"):
            bso.close(reason)
        bso.on_evaluate(0.1)
        assert not bso.training_finished


@pytest.mark.parametrize("metric", [1, Fraction(19, 20), Decimal("0.95"), np.float32(0.95), np.array([0.95])[0]])
def test_metric_of_any_number_type(grpc_addr: str, metric: Any) -> None:
    """Every type of number is a metric."""
    bso = begun(grpc_addr)
    bso.on_evaluate(metric)
    assert bso.target_reached


def test_refused_result_raises(grpc_addr: str) -> None:
    """A measurement that contradicts an earlier one raises the server's error, and the next one is accepted."""
    monitor = StepMonitor()
    bso = BatchSizeOptimizer(grpc_addr, job_spec(), monitor=monitor)
    bso.get_batch_size()
    bso.on_train_begin()
    bso.on_evaluate(0.1)
    with Client(grpc_addr) as client:
        ahead = v1.TrainingResult(
            trial=trial_id(bso.trial), measurement=v1.Measurement(time_seconds=2, energy_joules=20, metric=0.1, epoch=5)
        )
        client.report_result(ahead)
        with pytest.raises(InvalidResultError) as caught:
            bso.on_evaluate(0.1)
        assert "result.measurement.epoch" in [violation.field for violation in caught.value.violations]
        assert not bso.training_finished
        for _ in range(3, 6):
            with pytest.raises(InvalidResultError):
                bso.on_evaluate(0.1)
        bso.on_evaluate(0.95)
    assert bso.target_reached


def test_deleted_job_stops_the_training_in_the_middle_of_an_epoch(grpc_addr: str) -> None:
    """Deleting the job sets training_finished without a call by the trainer, and on_evaluate raises the reason."""
    bso = begun(grpc_addr)
    bso.on_evaluate(0.1)
    with Client(grpc_addr) as client:
        client.delete_job(bso.trial.job_id)
    wait_until(lambda: bso.training_finished)
    with pytest.raises(TrainFailError, match="deleted"):
        bso.on_evaluate(0.2)


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (ValueError("a bug"), v1.END_REASON_ERROR),
        (MemoryError(), v1.END_REASON_OUT_OF_MEMORY),
        (KeyboardInterrupt(), v1.END_REASON_PREEMPTED),
        (SystemExit(0), v1.END_REASON_COMPLETED),
        (SystemExit(3), v1.END_REASON_ERROR),
    ],
)
def test_exception_that_leaves_the_block(grpc_addr: str, error: BaseException, reason: v1.EndReason.ValueType) -> None:
    """A `with` block that is left by an exception ends the trial with the reason of the exception."""
    with pytest.raises(type(error)), begun(grpc_addr) as bso:
        raise error
    with Client(grpc_addr) as client:
        assert client.get_trial(bso.trial).trial.end_reason == reason


def test_end_of_the_block(grpc_addr: str) -> None:
    """A `with` block that is left without a decision ends the trial as stopped early."""
    with begun(grpc_addr) as bso:
        bso.on_evaluate(0.1)
    bso.on_evaluate(0.2)
    assert bso.training_finished
    with Client(grpc_addr) as client:
        found = client.get_trial(bso.trial)
    assert (found.trial.end_reason, found.trial.newest.epoch) == (v1.END_REASON_STOPPED_EARLY, 1)


def _hooks() -> tuple[object, ...]:
    return sys.excepthook, signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGHUP)


def test_hooks_are_restored(grpc_addr: str) -> None:
    """The process has its previous hooks once its trials are over, in whatever order they end."""
    before = _hooks()
    first, second = begun(grpc_addr), begun(grpc_addr)
    assert all(now is not then for now, then in zip(_hooks(), before, strict=True))
    first.close()
    second.on_evaluate(0.95)
    assert _hooks() == before


def test_choice_is_logged_with_its_reason(grpc_addr: str, caplog: pytest.LogCaptureFixture) -> None:
    """The log has the batch size and the reason."""
    with caplog.at_level(logging.INFO, logger="wattwise"), begun(grpc_addr) as bso:
        pass
    trial = bso.trial
    line = f"trial {trial.number} of job {trial.job_id!r} has batch size 16: {trial.reason}"
    assert line in [record.getMessage() for record in caplog.records]


def test_gpus_are_read_from_the_monitor_unless_given(grpc_addr: str) -> None:
    """Without a GPU and a GpuGroup there is an error; a GpuGroup is used unchanged."""
    with pytest.raises(MonitorError):
        BatchSizeOptimizer(grpc_addr, job_spec()).get_batch_size()
    with begun(grpc_addr) as bso:
        assert bso.trial.job.gpu == GPU
        with pytest.raises(InvalidArgumentError, match="must be a JobSpec, not ResolvedJob"):
            BatchSizeOptimizer(grpc_addr, bso.trial.job)  # type: ignore[arg-type]


def test_faulty_job_lists_its_faults(grpc_addr: str) -> None:
    """The error of an invalid job lists all faults at once; the error of a changed job names the changed fields."""
    with pytest.raises(InvalidJobSpecError) as faulty:
        begun(grpc_addr, default_batch_size=7, eta_knob=2.0)
    assert {v.field for v in faulty.value.violations} == {"job.default_batch_size", "job.eta_knob"}
    job_id = f"test-{uuid.uuid4()}"
    begun(grpc_addr, job_id=job_id).close()
    with pytest.raises(JobDiffersError) as differs:
        begun(grpc_addr, job_id=job_id, max_epochs=11)
    assert [each.field for each in differs.value.violations] == ["job.max_epochs"]


def test_server_away_before_the_batch_size(server: LiveServer) -> None:
    """Without a server the error names the address and the cause, and asking again later is the same launch."""
    server.stop()
    spec = job_spec()
    bso = BatchSizeOptimizer(server.address, spec, monitor=StepMonitor(), timeout=2.0)
    with pytest.raises(ServerUnavailableError, match=f"{server.address}.*[Rr]efused"):
        bso.get_batch_size()
    server.start()
    with bso:
        assert bso.get_batch_size() == 16


def test_actions_at_the_end(grpc_addr: str) -> None:
    """An action is called once, when the trial ends; an action that is added later is called at once."""
    done: list[str] = []
    bso = begun(grpc_addr)
    running_trial(bso).end_actions.add(lambda: done.append("in time"))
    assert done == []
    bso.close()
    bso.close()
    assert done == ["in time"]
    running_trial(bso).end_actions.add(lambda: done.append("late"))
    assert done == ["in time", "late"]


def test_new_optimizer_of_the_job_ends_the_older_trial(grpc_addr: str, caplog: pytest.LogCaptureFixture) -> None:
    """Another optimizer of the job ends the older one's trial and window, and logs it once; the older one is over.

    The two may spell the server's address differently.
    """
    monitor, job = StepMonitor(), job_spec()
    older = BatchSizeOptimizer(grpc_addr.replace("127.0.0.1", "localhost"), job, monitor=monitor)
    loop = older.epochs()
    next(loop)
    older.on_evaluate(0.1)
    newer = BatchSizeOptimizer(grpc_addr, job, monitor=monitor)
    assert not older.training_finished
    newer.get_batch_size()
    assert (older.training_finished, list(loop), monitor.open) == (True, [], {})
    for _ in newer.epochs():
        newer.on_evaluate(0.95)
    with Client(grpc_addr) as client:
        reasons = {trial.id.trial_number: trial.end_reason for trial in client.trials(str(job.job_id))}
    assert reasons == {1: v1.END_REASON_PREEMPTED, 2: v1.END_REASON_TARGET_REACHED}
    warnings = [record.args for record in caplog.records if record.levelno == logging.WARNING]
    assert warnings == [(older.trial.name,)]


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy])
def test_optimizers_are_not_copied(grpc_addr: str, copied: Callable[[object], object]) -> None:
    """A copy is refused, and its trial goes on."""
    with begun(grpc_addr) as bso:
        with pytest.raises(OperationOrderError, match="cannot be copied"):
            copied(bso)
        assert not bso.training_finished


def test_optimizers_of_other_jobs_and_decided_trials_are_left_alone(
    grpc_addr: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither another job's trial nor one that is decided is ended by a new optimizer."""
    with begun(grpc_addr) as other:
        decided = begun(grpc_addr)
        decided.on_evaluate(0.95)
        with begun(grpc_addr, job_id=decided.trial.job_id):
            assert not other.training_finished
        assert decided.target_reached
    with Client(grpc_addr) as client:
        assert client.get_trial(decided.trial).trial.end_reason == v1.END_REASON_TARGET_REACHED
    assert not [record for record in caplog.records if "new optimizer" in record.msg]


def test_trainers_read_values(grpc_addr: str) -> None:
    """A trial and a decision are frozen values without messages, which are printed as they are written."""
    bso = begun(grpc_addr)
    bso.on_evaluate(0.1)
    assert bso.decision is not None
    assert (bso.decision.stop_train, bso.decision.end_reason, bso.decision.last_epoch) == (False, None, 1)
    bso.on_evaluate(0.95)
    decision, trial = bso.decision, bso.trial
    assert decision.end_reason == "TARGET_REACHED"
    assert f"{decision.end_reason}" == str(decision.end_reason) == "TARGET_REACHED"
    assert "end_reason=EndReason.TARGET_REACHED" in repr(decision)
    assert repr(trial).startswith(
        f"Trial(job_id={trial.job_id!r}, number=1, launch_id={trial.launch_id!r}, batch_size=16"
    )
    assert (trial.job.max_epochs, trial.job.batch_sizes, trial.fallback, trial.per_rank_batch_size) == (
        *(10, (8, 16, 32), False, 16),
    )
    for value in (decision, trial):
        assert not [each for each in values(value) if isinstance(each, Message)]
    with pytest.raises(FrozenInstanceError):
        setattr(decision, "message", "")  # noqa: B010 - the type forbids an assignment


def values(value: Any) -> list[object]:
    """The values of a dataclass, and of those in it."""
    found = [getattr(value, each.name) for each in fields(value)]
    return found + [inner for each in found if is_dataclass(each) for inner in values(each)]


def test_reason_of_a_newer_server() -> None:
    """A decision for a reason that this client does not know has none."""
    message = v1.Decision(stop_train=True, message="over")
    message.MergeFromString(bytes([4 << 3, 99]))
    assert decision_of(message) == Decision(stop_train=True, message="over")
