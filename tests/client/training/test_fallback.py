"""A launch that finds no server, or nothing left to try, trains on its fallback batch size."""

from __future__ import annotations

import json
import logging
import time
from concurrent import futures
from pathlib import Path
from typing import Any

import grpc
import pytest
from wattwise import BatchSizeOptimizer, Client, Credentials, EndReason, PowerLimitOptimizer, v1
from wattwise.commands.main import main
from wattwise.errors import (
    InvalidAddressError,
    InvalidArgumentError,
    InvalidJobSpecError,
    JobDiffersError,
    NoBatchSizeLeftError,
    ResourceExhaustedError,
    ResumeError,
    ServerUnavailableError,
    TrainFailError,
    TrialDeletedError,
    UnauthenticatedError,
    UnsupportedCallError,
    UntrustedServerError,
)
from wattwise.rpc.calls import trial_id
from wattwise.training import launch
from wattwise.training.delivery import deliver_record
from wattwise.training.journal import TrialRecord
from wattwise.training.optimizer import running_trial
from wattwise.training.spool import Spool

from tests.client.rpc.middlebox import Middlebox
from tests.client.training.script import JOULES, StepMonitor, epochs, job_spec
from tests.live_server import LiveServer
from tests.waiting import wait_until

NOWHERE = "127.0.0.1:1"
"""No server listens here."""


def optimizer(
    address: str, fallback: int | str | None = "default", *, timeout: float | None = 0.0, **given: Any
) -> BatchSizeOptimizer:
    """An optimizer that gives a server up at once, unless the timeout is None."""
    return BatchSizeOptimizer(address, job_spec(**given), monitor=StepMonitor(), timeout=timeout, fallback=fallback)


def trained(bso: BatchSizeOptimizer, *metrics: float) -> BatchSizeOptimizer:
    """A training with these metrics."""
    bso.get_batch_size()
    bso.on_train_begin()
    for metric in metrics:
        bso.on_evaluate(metric)
    return bso


def spooled() -> list[TrialRecord]:
    """The trials in the spool."""
    return [TrialRecord.from_lines(path.read_text().splitlines()) for path in Spool.from_env().paths()]


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    """The warnings so far."""
    return [each.getMessage() for each in caplog.records if each.levelno >= logging.WARNING]


@pytest.fixture
def stopped(server: LiveServer) -> LiveServer:
    """A server that is down, on an address of its own."""
    server.kill()
    return server


def test_training_without_a_server(stopped: LiveServer, caplog: pytest.LogCaptureFixture) -> None:
    """The fallback is trained and measured as usual, until its target; one warning names the cause and the remedy."""
    caplog.set_level(logging.INFO, logger="wattwise")
    bso = optimizer(stopped.address, 32)
    assert bso.get_batch_size() == 32
    info = bso.trial
    assert (info.fallback, info.number, info.job_id) == (True, 0, info.job.job_id)
    assert (info.job.max_epochs, info.job.trial_lease_seconds) == (10, 300)
    assert stopped.address in info.reason
    seen = []
    for epoch in bso.epochs():
        seen.append(epoch)
        bso.on_evaluate(0.31 * epoch)
        assert bso.decision is not None
        assert (bso.decision.cost, bso.decision.stop_train) == (epoch * JOULES, epoch == 3)
    assert (seen, bso.target_reached, bso.training_finished) == ([1, 2, 3], True, True)
    assert bso.decision is not None
    assert (bso.decision.cost, bso.decision.converged) == (3 * JOULES, False)
    bso.close()
    (warning,) = warnings_of(caplog)
    assert stopped.address in warning
    assert "fallback batch size 32" in warning
    # What an operator would do is in the error of a launch without a fallback.
    assert not [line for line in (warning, info.reason) if "wattwise serve" in line]
    assert [line for line in caplog.messages if line.startswith(f"the fallback trial of job '{info.job_id}': target")]


def test_trial_is_delivered_by_the_next_launch(stopped: LiveServer) -> None:
    """What was trained without a server is a trial of the job before the next launch gets its batch size."""
    bso = trained(optimizer(stopped.address, 8, job_id="test-night"), 0.5, 0.95)
    bso.close()
    (record,) = spooled()
    assert (record.trial_number, record.batch_size, record.server) == (0, 8, stopped.address)
    stopped.start()
    with trained(optimizer(stopped.address, None, timeout=None, job_id="test-night")) as following:
        assert not following.trial.fallback
        assert following.trial.number == 2
        # Only that of the launch which runs is left.
        assert [each.trial_number for each in spooled()] == [2]
    with Client(stopped.address) as client:
        first, _ = client.trials("test-night")
        assert epochs(client, first.id) == [1, 2]
    assert (first.origin, first.batch_size) == (v1.TRIAL_ORIGIN_IMPORTED, 8)
    assert (first.end_reason, first.converged) == (v1.END_REASON_TARGET_REACHED, True)
    assert (first.newest.time_seconds, first.newest.energy_joules, list(first.monitor.kinds)) == (
        2,
        2 * JOULES,
        ["custom"],
    )
    assert abs(first.start_time.seconds - record.start_time) < 2
    assert spooled() == []


def test_server_that_returns_during_the_training(stopped: LiveServer) -> None:
    """A fallback trial stays one, and is delivered as soon as it is decided."""
    bso = trained(optimizer(stopped.address), 0.1)
    stopped.start()
    bso.on_evaluate(0.95)
    wait_until(lambda: Spool.from_env().paths() == [])
    with Client(stopped.address) as client:
        (trial,) = client.trials(bso.trial.job_id)
        assert epochs(client, trial.id) == [1, 2]
    bso.close()


@pytest.mark.parametrize(
    ("end", "expected"),
    [
        (lambda bso: bso.close(EndReason.OUT_OF_MEMORY), v1.END_REASON_OUT_OF_MEMORY),
        (lambda bso: bso.close("PREEMPTED"), v1.END_REASON_PREEMPTED),
        (lambda bso: bso.close(), v1.END_REASON_STOPPED_EARLY),
    ],
)
def test_end_of_an_undecided_fallback(server: LiveServer, end: Any, expected: v1.EndReason.ValueType) -> None:
    """A fallback trial that is not decided ends for its trainer's reason."""
    server.kill()
    bso = trained(optimizer(server.address), 0.1)
    server.start()
    end(bso)
    with Client(server.address) as client:
        (trial,) = client.trials(bso.trial.job_id)
    assert (trial.end_reason, trial.newest.epoch) == (expected, 1)
    assert spooled() == []


def test_last_epoch_ends_a_fallback(stopped: LiveServer) -> None:
    """A fallback trial that misses its target ends at max_epochs with the usual error."""
    bso = trained(optimizer(stopped.address, max_epochs=2), 0.1)
    with pytest.raises(TrainFailError, match="max epochs"):
        bso.on_evaluate(0.2)
    bso.close()
    stopped.start()
    trained(optimizer(stopped.address, timeout=None, job_id=bso.trial.job_id, max_epochs=2)).close()
    with Client(stopped.address) as client:
        assert next(iter(client.trials(bso.trial.job_id))).end_reason == v1.END_REASON_MAX_EPOCHS


def test_job_that_has_nothing_left(server: LiveServer, caplog: pytest.LogCaptureFixture) -> None:
    """A job whose batch sizes are used up trains on the fallback; the server gets that trial at its end."""
    with Client(server.address) as client:
        spec = job_spec(batch_sizes=[16], max_epochs=1)
        client.register_job(spec)
        trial = client.get_next_batch_size(spec.job_id).trial
        client.end_trial(trial.id, v1.END_REASON_OUT_OF_MEMORY)
        with pytest.raises(NoBatchSizeLeftError) as refused:
            BatchSizeOptimizer(server.address, spec, monitor=StepMonitor()).get_batch_size()
        bso = BatchSizeOptimizer(server.address, spec, monitor=StepMonitor())
        assert bso.get_batch_size(fallback="default") == 16
        assert running_trial(bso).info.job.num_trials == 1, "the job is the server's"
        bso.on_train_begin()
        bso.on_evaluate(0.95)
        bso.close()
        assert [each.end_reason for each in client.trials(spec.job_id)] == [
            v1.END_REASON_OUT_OF_MEMORY,
            v1.END_REASON_TARGET_REACHED,
        ]
    (warning,) = warnings_of(caplog)
    assert str(refused.value).split(" (call")[0] in warning


@pytest.mark.parametrize("fallback", [64, 0, True, "best", "64", 16.0])
def test_fallback_that_is_not_a_batch_size_of_the_job(fallback: Any) -> None:
    """A fallback must be one of the job's batch sizes; that is known before any call, and the error lists them."""
    with pytest.raises(InvalidArgumentError, match="8, 16, 32"):
        optimizer(NOWHERE, fallback)
    with pytest.raises(InvalidArgumentError, match=r"fallback="):
        optimizer(NOWHERE, None).get_batch_size(fallback=fallback)


@pytest.mark.parametrize(
    ("variable", "argument", "of_call", "expected"),
    [
        ("8", None, None, 8),
        ("default", None, None, 16),
        ("8", 32, None, 32),
        ("8", 32, "default", 16),
        ("8", "32", None, 32),
    ],
)
def test_precedence(
    monkeypatch: pytest.MonkeyPatch, variable: str, argument: int | str | None, of_call: str | None, expected: int
) -> None:
    """The call's fallback comes before the constructor's, and that before WATTWISE_FALLBACK."""
    monkeypatch.setenv("WATTWISE_FALLBACK", variable)
    with optimizer(NOWHERE, argument) as bso:
        assert bso.get_batch_size(fallback=of_call) == expected


def test_invalid_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    """An invalid WATTWISE_FALLBACK is named."""
    monkeypatch.setenv("WATTWISE_FALLBACK", "64")
    with pytest.raises(InvalidArgumentError, match="WATTWISE_FALLBACK=64"):
        optimizer(NOWHERE, None)


def test_without_a_fallback_the_error_is_raised() -> None:
    """Without a fallback, a server that is away is an error as before."""
    with pytest.raises(ServerUnavailableError, match=r'pass fallback="default"$'):
        optimizer(NOWHERE, None).get_batch_size()


def test_errors_of_the_user_are_raised(server: LiveServer) -> None:
    """A fallback hides neither a malformed address nor a wrong or changed job."""
    with pytest.raises(InvalidAddressError):
        optimizer("http://localhost").get_batch_size()
    with pytest.raises(InvalidJobSpecError):
        optimizer(server.address, timeout=None, eta_knob=2.0).get_batch_size()
    with optimizer(server.address, timeout=None, job_id="test-changed") as bso:
        bso.get_batch_size()
        with pytest.raises(JobDiffersError):
            optimizer(server.address, timeout=None, job_id="test-changed", max_epochs=3).get_batch_size()


def test_missing_token_is_raised(server: LiveServer, tmp_path: Path) -> None:
    """A fallback does not hide that the server requires a token."""
    server.stop()
    book = tmp_path / "tokens"
    assert main(["token", "create", "--tokens", str(book), "--role", "trainer", "--prefix", "test-"]) == 0
    server.start("--tokens", str(book))
    with pytest.raises(UnauthenticatedError):
        optimizer(server.address, timeout=None).get_batch_size()


def test_name_that_does_not_resolve(caplog: pytest.LogCaptureFixture) -> None:
    """A host name that does not resolve may be an outage of DNS: the fallback is trained, and the warning names it."""
    bso = optimizer("no-such-host.invalid:50051", timeout=1.0)
    assert (bso.get_batch_size(), bso.trial.fallback) == (16, True)
    (warning,) = warnings_of(caplog)
    assert "no-such-host.invalid:50051" in warning
    bso.close(EndReason.PREEMPTED)


def test_another_server_at_the_address(caplog: pytest.LogCaptureFixture) -> None:
    """Another gRPC server at the address is survived; without a fallback it is an error."""
    other = grpc.server(futures.ThreadPoolExecutor(1))
    address = f"127.0.0.1:{other.add_insecure_port('127.0.0.1:0')}"
    other.start()
    try:
        with pytest.raises(UnsupportedCallError):
            optimizer(address, None, timeout=None).get_batch_size()
        bso = trained(optimizer(address, timeout=None), 0.95)
        assert (bso.target_reached, bso.trial.fallback) == (True, True)
        (warning,) = warnings_of(caplog)
        assert address in warning
        bso.close()
        assert [each.server for each in spooled()] == [address]
    finally:
        other.stop(None).wait()


def test_certificate_that_is_not_accepted(server: LiveServer) -> None:
    """A server whose certificate cannot be verified is survived, and gets nothing."""
    given: dict[str, Any] = {"monitor": StepMonitor(), "credentials": Credentials(tls=True), "timeout": 1.0}
    with pytest.raises(UntrustedServerError):
        BatchSizeOptimizer(server.address, job_spec(), **given).get_batch_size()
    bso = trained(BatchSizeOptimizer(server.address, job_spec(), fallback=8, **given), 0.95)
    assert (bso.target_reached, bso.trial.fallback) == (True, True)
    bso.close()
    assert [each.batch_size for each in spooled()] == [8]


def test_server_that_has_reached_a_limit(server: LiveServer) -> None:
    """A job that the server has no room for is trained, and stays in the spool."""
    server.stop()
    server.start("--max-jobs-per-prefix", "1")
    with Client(server.address) as client:
        client.register_job(job_spec())
    with pytest.raises(ResourceExhaustedError):
        optimizer(server.address, None, timeout=None).get_batch_size()
    bso = trained(optimizer(server.address, timeout=None), 0.95)
    assert (bso.target_reached, bso.trial.fallback) == (True, True)
    bso.close()
    assert bso.trial.job_id in [each.job.job_id for each in spooled()]


def test_unused_fallback_changes_nothing(server: LiveServer, caplog: pytest.LogCaptureFixture) -> None:
    """With a server, its batch size is trained."""
    with trained(optimizer(server.address, 8, timeout=None), 0.1, 0.95) as bso:
        assert (bso.get_batch_size(), bso.trial.fallback) == (16, False)
        assert bso.decision is not None
        assert bso.decision.converged
    assert warnings_of(caplog) == []


@pytest.mark.parametrize("spooling", [True, False])
def test_checkpoint_of_a_fallback(server: LiveServer, monkeypatch: pytest.MonkeyPatch, *, spooling: bool) -> None:
    """A fallback trial continues from a checkpoint, and is one trial on the server, with the sums of both processes."""
    if not spooling:
        monkeypatch.setenv("WATTWISE_SPOOL", "off")
    server.kill()
    bso = trained(optimizer(server.address, 8), 0.1, 0.2)
    state = json.loads(json.dumps(bso.state_dict()))
    assert state["trial_number"] == 0
    bso.close(EndReason.PREEMPTED)
    server.start()
    again = optimizer(server.address, job_id=bso.trial.job_id)
    again.load_state_dict(state)
    assert (again.get_batch_size(), again.last_epoch, again.trial.fallback) == (8, 2, True)
    again.on_train_begin()
    again.on_evaluate(0.95)
    again.close()
    with Client(server.address) as client:
        (trial,) = client.trials(bso.trial.job_id)
        assert epochs(client, trial.id) == ([1, 2, 3] if spooling else [3])
    assert (trial.newest.energy_joules, trial.end_reason) == (3 * JOULES, v1.END_REASON_TARGET_REACHED)
    assert spooled() == []


def test_checkpoint_of_a_fallback_of_another_job() -> None:
    """A batch size that the job no longer has is refused."""
    bso = trained(optimizer(NOWHERE, 8), 0.1)
    state = bso.state_dict()
    bso.close(EndReason.PREEMPTED)
    again = optimizer(NOWHERE, 16, job_id=bso.trial.job_id, batch_sizes=[16, 32])
    again.load_state_dict(state)
    with pytest.raises(ResumeError, match="batch size 8"):
        again.get_batch_size()


def test_checkpoint_of_a_trial_whose_server_is_away(server: LiveServer, caplog: pytest.LogCaptureFixture) -> None:
    """With a fallback, a preempted trial continues with its own batch size, and is resumed when its server is back."""
    bso = trained(optimizer(server.address, timeout=None), 0.1, 0.1)
    server.kill()
    bso.on_evaluate(0.1)
    state = bso.state_dict()
    bso.close(EndReason.PREEMPTED)
    caplog.clear()
    again = optimizer(server.address, 8, job_id=bso.trial.job_id)
    again.load_state_dict(state)
    assert (again.get_batch_size(), again.trial.fallback, trial_id(again.trial)) == (16, False, trial_id(bso.trial))
    again.on_train_begin()
    again.on_evaluate(0.2)
    server.start()
    with Client(server.address) as client:
        wait_until(lambda: epochs(client, bso.trial) == [1, 2, 3, 4])
        again.on_evaluate(0.95)
        (trial,) = client.trials(bso.trial.job_id)
    assert (trial.end_reason, trial.newest.epoch) == (v1.END_REASON_TARGET_REACHED, 5)
    assert len(warnings_of(caplog)) == 1


def test_power_limits_stay(stopped: LiveServer, caplog: pytest.LogCaptureFixture) -> None:
    """A fallback trial trains at the current power limit, and warns once in all."""
    bso = optimizer(stopped.address)
    power = PowerLimitOptimizer(bso)
    bso.get_batch_size()
    bso.on_train_begin()
    power.on_step_begin()
    power.on_step_end()
    power.on_epoch_end()
    assert (power.profiling, power.limit_watts_per_gpu) == (False, None)
    bso.on_evaluate(0.95)
    power.close()
    bso.close()
    assert len(warnings_of(caplog)) == 1


def test_answer_that_does_not_arrive(server: LiveServer) -> None:
    """If the server dispatched another batch size but its answer was lost, the delivery ends that trial."""
    with Middlebox(server.address, drops="GetNextBatchSize") as box:
        bso = trained(optimizer(box.address, 8, timeout=5.0), 0.1)
        assert bso.trial.fallback
        box.drops = ""
        bso.on_evaluate(0.95)
        bso.close()
    with Client(server.address) as client:
        unanswered, imported = client.trials(bso.trial.job_id)
    assert (unanswered.batch_size, unanswered.newest.epoch) == (16, 0)
    assert unanswered.end_reason == v1.END_REASON_PREEMPTED
    assert (imported.batch_size, imported.newest.epoch) == (8, 2)
    assert spooled() == []


def test_unanswered_trial_that_was_lost(server: LiveServer) -> None:
    """The unanswered trial does not count as a failure, even if its lease expired before the delivery ends it."""
    job = {"job_id": "test-unanswered", "trial_lease_seconds": 1.0}
    with Middlebox(server.address, drops="GetNextBatchSize") as box, Client(server.address) as client:
        bso = trained(optimizer(box.address, 8, timeout=5.0, **job), 0.1)
        wait_until(lambda: next(client.trials("test-unanswered")).end_reason == v1.END_REASON_LOST)
        # Nothing gets through at the end, so that the next launch delivers the trial.
        box.stop()
        bso.close()
        (path,) = Spool.from_env().paths()
        delivered = deliver_record(client, TrialRecord.from_lines(path.read_text().splitlines()), 10.0)
        assert delivered is not None
        unanswered, imported = client.trials("test-unanswered")
        failed = {
            each.batch_size: each.num_failed for each in client.get_job("test-unanswered").details.batch_size_states
        }
    assert (unanswered.end_reason, imported.id) == (v1.END_REASON_PREEMPTED, delivered.id)
    assert failed[16] == 0


def test_search_is_bounded(stopped: LiveServer, caplog: pytest.LogCaptureFixture) -> None:
    """The server is looked for as long as without a fallback, and only one warning is logged."""
    bso = BatchSizeOptimizer(stopped.address, job_spec(), monitor=StepMonitor(), timeout=1.0, fallback=8)
    before = time.monotonic()
    with bso:
        assert bso.get_batch_size() == 8
        assert time.monotonic() - before < 5
        bso.on_train_begin()
        bso.on_evaluate(0.95)
    assert len(warnings_of(caplog)) == 1


def test_spool_survives_a_refusal_at_the_end(server: LiveServer, spool: Path) -> None:
    """A fallback trial that the server refuses stays in the spool with the reason."""
    with Client(server.address) as client:
        spec = job_spec(batch_sizes=[8, 16], job_id="test-refused")
        client.register_job(spec)
    server.kill()
    bso = trained(optimizer(server.address, 32, job_id="test-refused"), 0.1)
    server.start()
    bso.close()
    (record,) = spooled()
    assert "32" in record.refusal
    assert spool.exists()


def test_launch_whose_trial_was_deleted_has_no_fallback(server: LiveServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A repeated launch whose trial was deleted with its job ends with an error, although it has a fallback."""
    monkeypatch.setattr(launch, "new_id", lambda: "repeated")
    with optimizer(server.address, timeout=None, job_id="test-repeated") as bso:
        bso.get_batch_size()
    with Client(server.address) as client:
        client.delete_job("test-repeated")
    with pytest.raises(TrialDeletedError):
        optimizer(server.address, timeout=None, job_id="test-repeated").get_batch_size()
    assert not spooled()
