"""A server that goes away while a training runs, and proxies between the two."""

from __future__ import annotations

import logging
import math
import os
import signal
import socket
import struct
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from wattwise import BatchSizeOptimizer, Client, EndReason, v1
from wattwise.errors import InvalidRequestError, InvalidResultError, NotPossibleNowError, TrainFailError, WattwiseError
from wattwise.power.calls import PowerLimitCalls
from wattwise.training import journal as journal_module
from wattwise.training.exchange import Ending, Exchange, PendingReport
from wattwise.training.journal import Journal, read_record
from wattwise.training.session import Session
from wattwise.training.spool import Spool

from tests.client.rpc.middlebox import Middlebox
from tests.client.training.script import JOULES, StepMonitor, begun, epochs, job_spec, record_of, started
from tests.live_server import LiveServer
from tests.waiting import wait_until


def _count(caplog: pytest.LogCaptureFixture, level: int) -> int:
    return sum(record.levelno == level for record in caplog.records if record.name == "wattwise")


def test_killed_server_comes_back(server: LiveServer, caplog: pytest.LogCaptureFixture) -> None:
    """Training continues without its server after one warning; its measurements arrive when it is back."""
    caplog.set_level(logging.INFO, logger="wattwise")
    bso = begun(server.address)
    bso.on_evaluate(0.1)
    server.kill()
    wait_until(lambda: _count(caplog, logging.WARNING) == 1)
    before = time.monotonic()
    bso.on_evaluate(0.2)
    bso.on_evaluate(0.3)
    assert time.monotonic() - before < 1
    assert not bso.training_finished
    server.start()
    with Client(server.address) as client:
        wait_until(lambda: epochs(client, bso.trial) == [1, 2, 3])
        wait_until(lambda: f"the Wattwise server at {server.address} is back" in caplog.messages)
        bso.on_evaluate(0.4)
        wait_until(lambda: epochs(client, bso.trial) == [1, 2, 3, 4])
        bso.on_evaluate(0.95)
        assert bso.target_reached
        assert client.get_trial(bso.trial).trial.newest.energy_joules == 50
    assert _count(caplog, logging.WARNING) == 1


def test_hung_server_is_waited_for_once(server: LiveServer, caplog: pytest.LogCaptureFixture) -> None:
    """The first report without an answer waits, later ones do not, and all arrive when the server wakes."""
    bso = BatchSizeOptimizer(server.address, job_spec(), monitor=StepMonitor(), report_timeout=1.0)
    bso.get_batch_size()
    bso.on_train_begin()
    bso.on_evaluate(0.1)
    os.kill(server.process.pid, signal.SIGSTOP)
    before = time.monotonic()
    bso.on_evaluate(0.2)
    waited = time.monotonic()
    bso.on_evaluate(0.3)
    bso.on_evaluate(0.4)
    assert 1 <= waited - before < 3
    assert time.monotonic() - waited < 0.5
    os.kill(server.process.pid, signal.SIGCONT)
    with Client(server.address) as client:
        wait_until(lambda: epochs(client, bso.trial) == [1, 2, 3, 4])
    assert _count(caplog, logging.WARNING) == 1
    bso.close()


def test_decision_that_comes_late_ends_the_training(server: LiveServer) -> None:
    """The answer to a measurement that was kept during an outage can finish the training."""
    begun(server.address, job_id="test-late").on_evaluate(0.95)
    bso = begun(server.address, job_id="test-late")
    server.kill()
    for _ in range(3):
        bso.on_evaluate(0.1)
    assert not bso.training_finished
    server.start()
    wait_until(lambda: bso.training_finished)
    assert bso.decision is not None
    assert (bso.decision.stop_train, bso.decision.target_reached) == (True, False)
    with Client(server.address) as client:
        assert client.get_trial(bso.trial).trial.end_reason == v1.END_REASON_COST_BOUND
    with Client(server.address) as client:
        assert epochs(client, bso.trial) == [1, 2, 3]
    bso.close()


def test_decision_during_an_outage(server: LiveServer) -> None:
    """The newest decision is the trainer's own while the server is away, and the server's again when it is back."""
    bso = begun(server.address)
    bso.on_evaluate(0.1)
    assert _shown(bso) == (JOULES, False)
    server.kill()
    for epoch in (2, 3):
        bso.on_evaluate(0.1)
        assert _shown(bso) == (epoch * JOULES, True)
    server.start()
    wait_until(lambda: _shown(bso) == (3 * JOULES, False))
    bso.on_evaluate(0.1)
    assert _shown(bso) == (4 * JOULES, False)
    assert not bso.training_finished
    bso.close(EndReason.PREEMPTED)


def _shown(bso: BatchSizeOptimizer) -> tuple[float | None, bool]:
    """The cost of the newest decision, and whether it is the trainer's own."""
    assert bso.decision is not None
    return bso.decision.cost, "without the server" in bso.decision.message


@pytest.mark.parametrize("higher_is_better", [True, False])
def test_target_ends_the_training_without_a_server(server: LiveServer, higher_is_better: bool) -> None:
    """A model that reaches its target during an outage is finished at once, and reported when the server is back."""
    monitor, good, poor = StepMonitor(), *((0.95, 0.1) if higher_is_better else (0.1, 0.95))
    bso = BatchSizeOptimizer(
        server.address, job_spec(higher_is_better=higher_is_better, target_metric=0.5), monitor=monitor
    )
    bso.get_batch_size()
    bso.on_train_begin()
    server.kill()
    goes_on = []
    for metric in (poor, math.inf if higher_is_better else -math.inf, good):
        bso.on_evaluate(metric)
        goes_on.append(not bso.training_finished)
    assert goes_on == [True, True, False]
    assert bso.target_reached
    assert not monitor.open
    assert bso.decision is not None
    assert (bso.decision.converged, bso.decision.cost) == (False, 30)
    bso.on_evaluate(poor)
    server.start()
    wait_until(lambda: bso.decision is not None and bso.decision.converged)
    with Client(server.address) as client:
        found = client.get_trial(bso.trial)
        measured = list(client.measurements(bso.trial))
    assert [(m.epoch, m.metric, m.energy_joules) for m in measured][-1:] == [(3, good, 30)]
    assert found.trial.end_reason == v1.END_REASON_TARGET_REACHED
    bso.close()


def test_last_epoch_ends_the_training_without_a_server(server: LiveServer) -> None:
    """Training stops at max_epochs without a server; closing delivers the last epoch if the server is back."""
    bso = begun(server.address, max_epochs=2)
    server.kill()
    bso.on_evaluate(0.1)
    with pytest.raises(TrainFailError, match="without the server"):
        bso.on_evaluate(0.2)
    assert bso.training_finished
    assert not bso.target_reached
    server.start()
    bso.close()
    with Client(server.address) as client:
        found = client.get_trial(bso.trial)
        measured = list(client.measurements(bso.trial))
    assert [m.epoch for m in measured] == [1, 2]
    assert found.trial.end_reason == v1.END_REASON_MAX_EPOCHS


def test_pending_measurement_is_delivered_at_the_end(server: LiveServer) -> None:
    """Closing sends what the server has not acknowledged before it ends the trial."""
    bso = begun(server.address)
    server.kill()
    bso.on_evaluate(0.1)
    server.start()
    bso.close()
    with Client(server.address) as client:
        found = client.get_trial(bso.trial)
        measured = list(client.measurements(bso.trial))
    assert [m.epoch for m in measured] == [1]
    assert found.trial.end_reason == v1.END_REASON_STOPPED_EARLY


def test_closing_without_a_server_is_bounded(server: LiveServer) -> None:
    """Closing without a server takes seconds at most."""
    bso = begun(server.address)
    server.kill()
    before = time.monotonic()
    bso.close()
    assert time.monotonic() - before < 7


def test_closing_within_a_write_of_the_journal(server: LiveServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A signal handler that interrupts a write of the journal does not wait for the lock that the write holds."""
    bso, write = begun(server.address), journal_module._write  # noqa: SLF001 - interrupted
    took: list[float] = []

    def interrupted(descriptor: int, data: bytes) -> None:
        write(descriptor, data)
        if not bso.training_finished:
            before = time.monotonic()
            bso.close(EndReason.PREEMPTED)
            took.append(time.monotonic() - before)

    monkeypatch.setattr(journal_module, "_write", interrupted)
    bso.on_evaluate(0.1)
    assert len(took) == 1
    assert took[0] < 4
    with Client(server.address) as client:
        found = client.get_trial(bso.trial)
        measured = list(client.measurements(bso.trial))
    assert (found.trial.end_reason, len(measured)) == (v1.END_REASON_PREEMPTED, 1)
    wait_until(lambda: Spool.from_env().paths() == [])


def test_heartbeats_keep_the_lease(server: LiveServer) -> None:
    """A trial without reports for several leases is not lost while its trainer runs."""
    with begun(server.address, trial_lease_seconds=1.0) as bso, Client(server.address) as client:
        first = client.get_trial(bso.trial).trial.lease_expire_time.ToNanoseconds()
        wait_until(
            lambda: client.get_trial(bso.trial).trial.lease_expire_time.ToNanoseconds() > first + 3 * 600_000_000
        )
        assert client.get_trial(bso.trial).trial.status == v1.TRIAL_STATUS_RUNNING


@pytest.mark.parametrize("messages", [0, 1, 2])
def test_broken_streams_go_unnoticed(server: LiveServer, caplog: pytest.LogCaptureFixture, messages: int) -> None:
    """If streams are refused or break after a few messages, single calls take over without a warning."""
    with Middlebox(server.address, messages_per_stream=messages) as box:
        bso = begun(box.address, max_epochs=30)
        for epoch in range(1, 21):
            bso.on_evaluate(0.1)
            assert bso.decision is not None
            assert bso.decision.cost == 10 * epoch
        bso.on_evaluate(0.95)
        assert bso.target_reached
    assert _count(caplog, logging.WARNING) == 0
    with Client(server.address) as client:
        assert epochs(client, bso.trial) == list(range(1, 22))


def test_heartbeat_stops_a_trainer_without_a_stream(server: LiveServer) -> None:
    """If streams are refused, a trainer learns of its job's deletion within a third of the lease."""
    with Middlebox(server.address, messages_per_stream=0) as box, Client(server.address) as client:
        bso = begun(box.address, trial_lease_seconds=1.5)
        client.delete_job(bso.trial.job_id)
        wait_until(lambda: bso.training_finished)
        bso.close()


def exchange_of_no_trial() -> Exchange:
    """Returns an exchange with a server that nobody calls."""
    address = "localhost:50051"
    return Exchange(address, Journal(record_of(address, v1.Trial())))


def test_outage_that_another_call_noticed_first(caplog: pytest.LogCaptureFixture) -> None:
    """Each outage is warned of once, by the call that notices it first."""
    exchange = exchange_of_no_trial()
    for _ in range(2):
        assert exchange.claim_outage_warning(time.monotonic())
        assert not exchange.claim_outage_warning(time.monotonic())
        exchange.mark_unreachable("it is away")
        assert not caplog.records
        exchange.mark_answered()
    # An outage that ends before the session notices it.
    assert exchange.claim_outage_warning(time.monotonic())
    exchange.mark_answered()
    exchange.mark_unreachable("it is away")
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert not exchange.claim_outage_warning(time.monotonic())


def test_end_of_every_outage_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    """The end of an outage is logged even if only another call than the session's has noticed the outage."""
    caplog.set_level(logging.INFO, logger="wattwise")
    exchange = exchange_of_no_trial()
    exchange.mark_answered()
    assert not caplog.records
    exchange.claim_outage_warning(time.monotonic())
    exchange.mark_answered()
    exchange.mark_answered()
    assert caplog.messages == ["the Wattwise server at localhost:50051 is back"]


def test_outage_of_a_trial_that_the_server_does_not_have(caplog: pytest.LogCaptureFixture) -> None:
    """The answer that the server does not have the trial ends an outage; of later ones, every failed call warns."""
    caplog.set_level(logging.INFO, logger="wattwise")
    exchange = exchange_of_no_trial()
    exchange.mark_unreachable("it is away")
    exchange.mark_unknown()
    assert caplog.messages[1:] == ["the Wattwise server at localhost:50051 is back"]
    assert [exchange.claim_outage_warning(time.monotonic()) for _ in range(2)] == [True, True]


def test_call_that_outlasts_an_outage(server: LiveServer, caplog: pytest.LogCaptureFixture) -> None:
    """A call that began in an outage and is reset after its end does not warn again; the next outage is warned of."""
    caplog.set_level(logging.INFO, logger="wattwise")
    with Client(server.address) as client:
        job = client.register_job(job_spec()).job
        record = record_of(server.address, v1.Trial(id=v1.TrialId(job_id=job.spec.job_id)))
        trial = client.get_next_batch_size(job.spec.job_id, launch_id=record.launch_id).trial.id
    session = Session(Client(server.address), trial, Journal(record), beat_seconds=math.inf)
    session.start(started(v1.Trial(id=trial)))
    session.exchange.report(
        v1.TrainingResult(
            trial=trial, measurement=v1.Measurement(epoch=1, metric=0.1, energy_joules=10, time_seconds=1)
        ),
        10.0,
    )
    server.kill()
    wait_until(lambda: _count(caplog, logging.WARNING) == 1)
    with ThreadPoolExecutor(1) as worker, socket.create_server(("127.0.0.1", 0)) as proxy:
        address = f"127.0.0.1:{proxy.getsockname()[1]}"
        calls = PowerLimitCalls(
            lambda: Client(address, timeout=20.0, search_timeout=0.0), trial, session.exchange.claim_outage_warning
        )
        answer = worker.submit(calls.acquire)
        held, _ = proxy.accept()
        # An empty SETTINGS frame of HTTP/2 opens the connection; the call is under way once its path has arrived.
        held.sendall(bytes((0, 0, 0, 4, 0, 0, 0, 0, 0)))
        received = b""
        while b"AcquirePowerLimit" not in received:
            received += held.recv(4096)
        server.start()
        wait_until(lambda: f"the Wattwise server at {server.address} is back" in caplog.messages)
        # Closes with a reset.
        held.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        held.close()
        assert answer.result() is None
    assert "call about power limits" in caplog.messages[-1]
    assert _count(caplog, logging.WARNING) == 1
    server.kill()
    wait_until(lambda: _count(caplog, logging.WARNING) == 2)
    session.close(v1.END_REASON_COMPLETED, 0.0)


@pytest.fixture
def journaled(tmp_path: Path) -> Exchange:
    """The exchange of a trial whose journal is a file."""
    trial = v1.Trial(id=v1.TrialId(job_id="test-journaled", launch_id="l", trial_number=1), batch_size=16)
    record = record_of("localhost:50051", trial)
    return Exchange(record.server, Journal.create(record, tmp_path / "test.wattwise-trial"))


def result_of(epoch: int) -> v1.TrainingResult:
    """Returns the measurement of an epoch."""
    return v1.TrainingResult(measurement=v1.Measurement(epoch=epoch, time_seconds=epoch, metric=0.1))


def test_signal_within_the_journal(journaled: Exchange, monkeypatch: pytest.MonkeyPatch) -> None:
    """A handler that interrupts the journal and waits for the session gets away, whatever the session has to note."""
    refused = journaled.post(result_of(1))

    def session() -> None:
        with journaled.changed:
            journaled.changed.wait_for(lambda: journaled.ending is not None)
        journaled.refuse(refused, InvalidResultError("no"))

    def handler(*_: object) -> None:
        monkeypatch.undo()
        journaled.close(Ending(v1.END_REASON_PREEMPTED, time.monotonic()))
        waited.append(journaled.wait_disconnected(0.5))

    waited: list[bool] = []
    before = signal.signal(signal.SIGTERM, handler)
    monkeypatch.setattr(os, "fsync", lambda _: os.kill(os.getpid(), signal.SIGTERM))
    try:
        with ThreadPoolExecutor(1) as pool:
            ended = pool.submit(session)
            journaled.report(result_of(2), 0.1)
            ended.result(10)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert waited == [False]
    assert [result.measurement.epoch for result, _ in journaled.journal.record.results] == [2]


def test_signal_within_the_exchange(journaled: Exchange, monkeypatch: pytest.MonkeyPatch) -> None:
    """A handler that interrupts a decision does not wait for a session that has the journal and wants to note it."""
    journaled.journal.count_from(v1.Measurement(time_seconds=1))
    carry_on, has_journal = journaled.journal.carry_on, threading.Event()

    def slow(trial: v1.Trial) -> None:
        carry_on(trial)
        has_journal.set()
        handled.wait(10)

    def handler(*_: object) -> None:
        # The session waits for the lock of the exchange, or soon will.
        handled.set()
        journaled.close(Ending(v1.END_REASON_PREEMPTED, time.monotonic()))
        journaled.wait_disconnected(0.5)

    handled = threading.Event()
    monkeypatch.setattr(journaled.journal, "carry_on", slow)
    before = signal.signal(signal.SIGTERM, handler)
    try:
        with ThreadPoolExecutor(1) as pool:
            resumed = pool.submit(journaled.resume, v1.Trial())
            has_journal.wait(10)
            with journaled.changed:
                os.kill(os.getpid(), signal.SIGTERM)
            resumed.result(10)
    finally:
        signal.signal(signal.SIGTERM, before)
    journaled.write_ending()
    assert journaled.journal.record.end_reason == v1.END_REASON_PREEMPTED
    # Once: an optimizer that continues the trial has the journal then.
    journaled.journal.resume()
    journaled.write_ending()
    assert journaled.journal.record.end_reason == v1.END_REASON_UNSPECIFIED


def test_signal_between_two_lines_of_the_journal(journaled: Exchange, monkeypatch: pytest.MonkeyPatch) -> None:
    """A line that a handler writes within another one leaves the file open and complete."""
    journal, write, written = journaled.journal, journal_module._write, []  # noqa: SLF001 - interrupted

    def interrupted(descriptor: int, data: bytes) -> None:
        written.append(descriptor)
        if len(written) == 1:
            journal.end(v1.END_REASON_PREEMPTED)
        os.fstat(descriptor)
        write(descriptor, data)

    monkeypatch.setattr(journal_module, "_write", interrupted)
    journal.add(result_of(1))
    assert journal.path is not None
    record = read_record(journal.path)
    assert record.end_reason == v1.END_REASON_PREEMPTED
    assert [result.measurement.epoch for result, _ in record.results] == [1]


def test_error_of_a_missed_target_is_not_the_end_of_the_trial(server: LiveServer) -> None:
    """A trial that its trainer has decided during an outage did not end with the error that this raises."""
    bso = begun(server.address, max_epochs=1)
    server.kill()

    def train() -> None:
        with bso:
            bso.on_evaluate(0.1)

    with pytest.raises(TrainFailError):
        train()
    (path,) = Spool.from_env().paths()
    assert read_record(path).end_reason == v1.END_REASON_COMPLETED
    server.start()


def test_slow_journal_does_not_stop_the_session(journaled: Exchange, monkeypatch: pytest.MonkeyPatch) -> None:
    """While a measurement is written, the session can send heartbeats and take decisions."""

    def answered() -> bool:
        journaled.answer(None, v1.Decision(stop_train=True))
        return True

    answers: list[bool] = []
    with ThreadPoolExecutor(1) as pool:
        monkeypatch.setattr(os, "fsync", lambda _: answers.append(pool.submit(answered).result(10)))
        assert journaled.report(result_of(1), 10.0)
    assert answers == [True]


def test_refusal_keeps_the_next_measurement(journaled: Exchange) -> None:
    """The refusal of a measurement that was kept during an outage does not swallow the one after it."""
    journaled.mark_unreachable("it is away")
    journaled.report(result_of(1), 10.0)
    refused = journaled.next_report
    assert refused is not None
    refusal = InvalidResultError("no")
    journaled.refuse(refused, refusal)
    assert not journaled.report(result_of(2), 0.0)
    assert [report.result.measurement.epoch for report in journaled.pending] == [2]
    assert [journaled.take_refusal(), journaled.take_refusal()] == [refusal, None]


def test_outage_of_many_epochs() -> None:
    """No measurement of a long outage is dropped."""
    exchange = exchange_of_no_trial()
    exchange.mark_unreachable("it is away")
    count = 20_000
    for epoch in range(1, count + 1):
        exchange.post(result_of(epoch))
    assert exchange.next_report is not None
    assert (exchange.next_report.result.measurement.epoch, len(exchange.pending)) == (1, count)


@pytest.mark.parametrize("refusal", [InvalidResultError("no"), InvalidRequestError("no"), NotPossibleNowError("no")])
def test_refusal_ends_an_epoch(server: LiveServer, monkeypatch: pytest.MonkeyPatch, refusal: WattwiseError) -> None:
    """An epoch in which a refusal is raised counts, and its target is noticed without the server, too."""
    bso = begun(server.address)
    monkeypatch.setattr(Exchange, "take_refusal", lambda _: refusal)
    for metric in (0.1, 0.95):
        with pytest.raises(type(refusal)):
            bso.on_evaluate(metric)
        assert bso.training_finished == (metric == 0.95)
        server.kill()
    assert bso.last_epoch == 2
    bso.on_evaluate(0.95)
    assert bso.last_epoch == 2
    bso.close()


def test_refused_epoch_reaches_no_target(server: LiveServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody decides on a measurement that the server has refused: the training goes on."""
    bso = begun(server.address)

    def refuse(exchange: Exchange, report: PendingReport, _decision: v1.Decision) -> None:
        exchange.refuse(report, InvalidResultError("no"))

    with monkeypatch.context() as patched:
        patched.setattr(Exchange, "answer", refuse)
        with pytest.raises(InvalidResultError):
            bso.on_evaluate(0.95)
    assert (bso.training_finished, bso.target_reached, bso.last_epoch) == (False, False, 1)
    bso.close()
