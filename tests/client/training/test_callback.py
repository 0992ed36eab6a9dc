"""The calls of a training loop."""

from __future__ import annotations

import logging
import math
import signal
import sys
import uuid
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from wattwise import (
    BatchSizeOptimizer,
    Client,
    CredentialsError,
    EstimateMonitor,
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
    v1,
)

from tests.client.training.script import GPU, JOULES, StepMonitor, begun, job_spec
from tests.live_server import LiveServer
from tests.waiting import wait_until


def test_three_calls_in_a_loop(grpc_addr: str) -> None:
    """A trainer asks for its batch size, reports epochs, and is told to stop when the target is reached."""
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
        found = client.get_trial(bso.trial.id)
    assert found.trial.end_reason == v1.END_REASON_TARGET_REACHED
    assert [(m.current_epoch, m.time_seconds, m.energy_joules) for m in found.measurements] == [
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
    with pytest.raises(TrainFailError, match="max epochs") as caught:
        bso.on_evaluate(0.2)
    assert caught.value.decision == bso.decision
    assert bso.training_finished
    assert not bso.target_reached


def test_good_model_that_was_too_dear_is_no_failure(grpc_addr: str) -> None:
    """A trial that reaches the target beyond its cost bound does not converge, but does not raise either."""
    cheap = begun(grpc_addr)
    cheap.on_evaluate(0.95)
    dear = begun(grpc_addr, job_id=cheap.trial.id.job_id)
    dear.on_evaluate(0.1)
    dear.on_evaluate(0.2)
    dear.on_evaluate(0.95)
    assert dear.decision is not None
    assert (dear.training_finished, dear.target_reached, dear.decision.converged) == (True, True, False)


def test_order_of_calls(grpc_addr: str) -> None:
    """Calls in the wrong order say what to call first."""
    bso = BatchSizeOptimizer(grpc_addr, job_spec(), monitor=StepMonitor())
    with pytest.raises(OperationOrderError, match=r"get_batch_size\(\) before on_evaluate\(\)"):
        bso.on_evaluate(0.1)
    with pytest.raises(OperationOrderError, match=r"get_batch_size\(\) before on_train_begin\(\)"):
        bso.on_train_begin()
    with pytest.raises(OperationOrderError, match=r"get_batch_size\(\) before trial"):
        _ = bso.trial
    with pytest.raises(OperationOrderError, match=r"get_batch_size\(\) before monitor"):
        _ = bso.monitor_kind
    with bso:
        bso.get_batch_size()
        with pytest.raises(OperationOrderError, match=r"on_train_begin\(\) ahead of"):
            bso.on_evaluate(0.1)
        bso.on_train_begin()
        with pytest.raises(OperationOrderError, match="called before"):
            bso.on_train_begin()


def test_asking_twice_is_one_trial(grpc_addr: str) -> None:
    """get_batch_size gives the same batch size however often it is called."""
    with BatchSizeOptimizer(grpc_addr, job_spec(), monitor=StepMonitor()) as bso:
        assert bso.get_batch_size() == bso.get_batch_size() == bso.trial.id.batch_size
        with Client(grpc_addr) as client:
            assert client.get_job(bso.job.spec.job_id).num_trials == 1


def test_infinite_metric_has_not_converged(grpc_addr: str) -> None:
    """A diverged loss is reported as NaN, whichever infinity or NaN it is."""
    with begun(grpc_addr) as bso:
        for metric in (math.inf, -math.inf, math.nan):
            bso.on_evaluate(metric)
        with Client(grpc_addr) as client:
            found = client.get_trial(bso.trial.id)
    assert [math.isnan(m.metric) for m in found.measurements] == [True] * 3


def test_nan_metric_is_warned_of_once(grpc_addr: str, caplog: pytest.LogCaptureFixture) -> None:
    """A diverged training is told so once, and goes on."""
    with begun(grpc_addr) as bso:
        for metric in (0.1, math.nan, math.inf, math.nan):
            bso.on_evaluate(metric)
        assert not bso.training_finished
    (said,) = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert "the metric of epoch 2 is nan" in said


@pytest.mark.parametrize(
    ("metric", "named"),
    [
        (None, "None"),
        ("0.9", "'0.9'"),
        ([0.9], "something of type list"),
        (1j, "something of type complex"),
        (np.ones(2), "something of type ndarray"),
    ],
)
def test_metric_that_is_no_number(grpc_addr: str, metric: Any, named: str) -> None:
    """What is no number raises a TypeError that says what to pass, with nothing chained to it, and is no epoch."""
    with begun(grpc_addr, max_epochs=2) as bso:
        with pytest.raises(MetricTypeError, match=f"got {named} as metric: pass one number") as caught:
            bso.on_evaluate(metric)
        assert isinstance(caught.value, TypeError)
        assert caught.value.__cause__ is None
        assert caught.value.__suppress_context__
        bso.on_evaluate(0.1)
        assert not bso.training_finished


@pytest.mark.parametrize(
    ("given", "error", "told"),
    [
        ({"job": {"job_id": "test-1"}}, InvalidArgumentError, "not dict"),
        ({"timeout": "5"}, InvalidArgumentError, "timeout='5' is invalid"),
        ({"timeout": math.inf}, InvalidArgumentError, "timeout=inf is invalid"),
        ({"report_timeout": -1}, InvalidArgumentError, "report_timeout=-1 is invalid"),
        ({"report_timeout": None}, InvalidArgumentError, "report_timeout=None is invalid"),
        ({"reduce_metric": "avg"}, InvalidArgumentError, "use one of first, mean"),
        ({"credentials": "wwt_secret"}, CredentialsError, "not str"),
        (
            {"monitor": "nvml"},
            MonitorError,
            "'nvml' is not a monitor",
        ),
        ({"monitor": EstimateMonitor}, MonitorError, "not a monitor; pass an instance"),
    ],
)
def test_argument_of_another_kind(grpc_addr: str, given: dict[str, Any], error: type[WattwiseError], told: str) -> None:
    """What is no job, no monitor, no time or no credentials is named before anything is trained, and what to give."""
    usual: dict[str, Any] = {"job": job_spec(gpu=GPU), "monitor": StepMonitor()}
    with pytest.raises(error, match=told):
        BatchSizeOptimizer(grpc_addr, **(usual | given)).get_batch_size()


@pytest.mark.parametrize("reason", ["error", v1.END_REASON_TARGET_REACHED, v1.END_REASON_UNSPECIFIED])
def test_reason_that_no_trainer_gives(grpc_addr: str, reason: Any) -> None:
    """A reason that is not a trainer's to give is refused with those that are, and the trial goes on."""
    with begun(grpc_addr) as bso:
        with pytest.raises(InvalidArgumentError, match=r"close\(\) got .* give v1\.END_REASON_COMPLETED, _"):
            bso.close(reason)
        bso.on_evaluate(0.1)
        assert not bso.training_finished


@pytest.mark.parametrize("metric", [1, True, Fraction(19, 20), Decimal("0.95"), np.float32(0.95), np.array([0.95])[0]])
def test_numbers_of_all_kinds(grpc_addr: str, metric: Any) -> None:
    """Whatever is a number is a metric."""
    bso = begun(grpc_addr)
    bso.on_evaluate(metric)
    assert bso.target_reached


def test_refused_result_raises(grpc_addr: str) -> None:
    """A measurement that makes no sense raises with the server's words, and the next one is taken as usual."""
    monitor = StepMonitor()
    bso = BatchSizeOptimizer(grpc_addr, job_spec(), monitor=monitor)
    bso.get_batch_size()
    bso.on_train_begin()
    bso.on_evaluate(0.1)
    with Client(grpc_addr) as client:
        ahead = v1.TrainingResult(trial=bso.trial.id, time_seconds=2, energy_joules=20, metric=0.1, current_epoch=5)
        client.report_result(ahead)
        with pytest.raises(InvalidResultError) as caught:
            bso.on_evaluate(0.1)
        assert "result.current_epoch" in [violation.field for violation in caught.value.violations]
        assert not bso.training_finished
        for _ in range(3, 6):
            with pytest.raises(InvalidResultError):
                bso.on_evaluate(0.1)
        bso.on_evaluate(0.95)
    assert bso.target_reached


def test_deleted_job_stops_the_training_in_mid_epoch(grpc_addr: str) -> None:
    """Deleting the job sets training_finished without a call from the trainer, and on_evaluate says why."""
    bso = begun(grpc_addr)
    bso.on_evaluate(0.1)
    with Client(grpc_addr) as client:
        client.delete_job(bso.trial.id.job_id)
    wait_until(lambda: bso.training_finished)
    with pytest.raises(TrainFailError, match="was deleted"):
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
    """A `with` block that is left by an exception ends the trial for the reason that it stands for."""
    with pytest.raises(type(error)), begun(grpc_addr) as bso:
        raise error
    with Client(grpc_addr) as client:
        assert client.get_trial(bso.trial.id).trial.end_reason == reason


def test_end_of_the_block(grpc_addr: str) -> None:
    """A `with` block that is left without a decision ends the trial as completed."""
    with begun(grpc_addr) as bso:
        bso.on_evaluate(0.1)
    bso.on_evaluate(0.2)
    assert bso.training_finished
    with Client(grpc_addr) as client:
        found = client.get_trial(bso.trial.id)
    assert (found.trial.end_reason, found.trial.last_epoch) == (v1.END_REASON_COMPLETED, 1)


def _hooks() -> tuple[object, object]:
    return sys.excepthook, signal.getsignal(signal.SIGTERM)


def test_hooks_are_put_back(grpc_addr: str) -> None:
    """The process is left as it was once its trials are over, in whatever order they end."""
    before = _hooks()
    first, second = begun(grpc_addr), begun(grpc_addr)
    assert all(now is not then for now, then in zip(_hooks(), before, strict=True))
    first.close()
    second.on_evaluate(0.95)
    assert _hooks() == before


def test_launch_without_job_id_is_warned_of(grpc_addr: str, caplog: pytest.LogCaptureFixture) -> None:
    """A job without an id is a new one at every launch, which is said once."""
    with begun(grpc_addr, job_id=None) as bso:
        bso.get_batch_size()
    said = [record.getMessage() for record in caplog.records if "a job of its own" in record.getMessage()]
    assert len(said) == 1
    assert repr(bso.trial.id.job_id) in said[0]
    assert "job_id" in said[0]


def test_choice_is_logged_with_its_reason(grpc_addr: str, caplog: pytest.LogCaptureFixture) -> None:
    """The log says which batch size was chosen and why."""
    with caplog.at_level(logging.INFO, logger="wattwise"), begun(grpc_addr):
        pass
    assert "batch size 16" in caplog.text
    assert "pruning round 1 of 2" in caplog.text


def test_gpus_are_read_from_the_monitor_unless_given(grpc_addr: str) -> None:
    """Without a GPU the error says what to pass instead; a given GpuConfig is used as it is."""
    with pytest.raises(MonitorError):
        BatchSizeOptimizer(grpc_addr, job_spec()).get_batch_size()
    with begun(grpc_addr) as bso:
        assert bso.job.spec.gpu == v1.GpuConfig(max_power_watts=100, number_of_gpus=1, gpu_model="Test GPU")


def test_faulty_job_lists_its_faults(grpc_addr: str) -> None:
    """All faults of a job are listed at once, and a changed job names what changed."""
    with pytest.raises(InvalidJobSpecError) as faulty:
        begun(grpc_addr, default_batch_size=7, eta_knob=2.0)
    assert {v.field for v in faulty.value.violations} == {"job.default_batch_size", "job.eta_knob"}
    job_id = f"test-{uuid.uuid4()}"
    begun(grpc_addr, job_id=job_id).close()
    with pytest.raises(JobDiffersError) as differs:
        begun(grpc_addr, job_id=job_id, max_epochs=11)
    assert "max_epochs" in differs.value.metadata


def test_server_away_before_the_batch_size(server: LiveServer) -> None:
    """Without a server the error names the address and the cause, and asking again later is the same launch."""
    server.stop()
    spec = job_spec(job_id=None)
    bso = BatchSizeOptimizer(server.address, spec, monitor=StepMonitor(), timeout=0.5)
    with pytest.raises(ServerUnavailableError, match=f"{server.address}.*[Rr]efused"):
        bso.get_batch_size()
    server.start()
    with bso:
        assert bso.get_batch_size() == 16


def test_actions_at_the_end(grpc_addr: str) -> None:
    """What was asked for at the end is done once, as the trial ends; what comes too late is done at once."""
    done: list[str] = []
    bso = begun(grpc_addr)
    bso.call_at_end(lambda: done.append("in time"))
    assert done == []
    bso.close()
    bso.close()
    assert done == ["in time"]
    bso.call_at_end(lambda: done.append("late"))
    assert done == ["in time", "late"]
