"""The spool against the real server: what could not be delivered arrives later, exactly once."""

from __future__ import annotations

import logging
import math
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import grpc
import pytest
from wattwise import BatchSizeOptimizer, Client, Credentials, EndReason, v1
from wattwise.errors import InvalidResultError, PermissionDeniedError, ServerUnavailableError, TrainFailError
from wattwise.monitor import Window
from wattwise.spec import job_message
from wattwise.training.delivery import deliver_files
from wattwise.training.journal import TrialRecord
from wattwise.training.optimizer import running_trial
from wattwise.training.spool import Spool
from wattwise_server.security.tokens import Role

from tests.client.rpc.middlebox import Middlebox
from tests.client.training.killed import EPOCHS
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
from tests.credentials import issue
from tests.hostile.server import Behaviour, Call, HostileServer
from tests.live_server import LiveServer
from tests.waiting import wait_until

Start = Callable[..., subprocess.Popen[str]]


def spooled() -> list[TrialRecord]:
    """The trials in the spool."""
    return [TrialRecord.from_lines(path.read_text().splitlines()) for path in Spool.from_env().paths()]


def launched_again(address: str, job_id: str, **given: Any) -> None:
    """Another launch of a job, which is preempted at once."""
    bso = BatchSizeOptimizer(address, job_spec(job_id=job_id, **given), monitor=StepMonitor())
    bso.get_batch_size()
    bso.close(EndReason.PREEMPTED)


@pytest.fixture
def train() -> Iterator[Start]:
    """Starts trainings of `killed`; none outlives its test."""
    with ExitStack() as after:

        def started(address: str, job_id: str, *options: str) -> subprocess.Popen[str]:
            command = [sys.executable, "-m", "tests.client.training.killed", address, job_id, *options]
            pipe, root = subprocess.PIPE, Path(__file__).parents[3]
            process = after.enter_context(
                subprocess.Popen(command, cwd=root, stdin=pipe, stdout=pipe, stderr=pipe, text=True)
            )
            after.callback(process.kill)
            return process

        yield started


def after_epochs(process: subprocess.Popen[str], count: int) -> None:
    """Lets a training with `--lines` train some epochs."""
    assert read_line(process).startswith("trial ")
    for epoch in range(1, count + 1):
        send_line(process)
        assert read_line(process) == f"epoch {epoch}"


def test_spool_is_empty_after_an_ordinary_trial(server: LiveServer) -> None:
    """While a trial runs the spool has it; as soon as the server has decided it, the spool is empty."""
    bso = begun(server.address)
    bso.on_evaluate(0.1)
    (record,) = spooled()
    assert (record.trial_number, record.batch_size, len(record.results)) == (1, 16, 1)
    assert record.job == job_message(job_spec(job_id=bso.trial.job_id))
    bso.on_evaluate(0.95)
    bso.close()
    assert spooled() == []


@pytest.mark.parametrize("reason", [v1.END_REASON_ERROR, v1.END_REASON_PREEMPTED, v1.END_REASON_COMPLETED])
def test_spool_is_empty_after_an_acknowledged_end(server: LiveServer, reason: v1.EndReason.ValueType) -> None:
    """The answer to EndTrial ends the trial for the spool too."""
    bso = begun(server.address)
    bso.on_evaluate(0.1)
    bso.close(reason_of(reason))
    assert spooled() == []


def test_model_that_was_finished_without_the_server(server: LiveServer) -> None:
    """A model that reached its target while the server was away is not lost: the next launch delivers it."""
    bso = begun(server.address)
    bso.on_evaluate(0.1)
    server.kill()
    bso.on_evaluate(0.2)
    bso.on_evaluate(0.95)
    assert bso.target_reached
    bso.close()
    assert [len(each.results) for each in spooled()] == [3]
    server.start()
    launched_again(server.address, bso.trial.job_id)
    with Client(server.address) as client:
        found = client.get_trial(bso.trial)
        measured = list(client.measurements(bso.trial))
    assert [m.epoch for m in measured] == [1, 2, 3]
    assert (found.trial.end_reason, found.trial.converged) == (v1.END_REASON_TARGET_REACHED, True)
    assert spooled() == []


def test_killed_trainer(server: LiveServer, train: Start) -> None:
    """A trainer that is killed is delivered as lost with its measurements, and not while it runs."""
    process = train(server.address, "test-killed", "--lines")
    after_epochs(process, 1)
    server.kill()
    send_line(process)
    assert read_line(process) == "epoch 2"
    server.start()
    with Client(server.address) as client:
        assert deliver_files(client, Spool.from_env().paths(), 10.0).delivered == 0, "the trainer is alive"
        os.kill(process.pid, signal.SIGKILL)
        assert ended(process)[0] == -signal.SIGKILL
        launched_again(server.address, "test-killed", max_epochs=50, beta_knob="off")
        first, _ = client.trials("test-killed")
        assert epochs(client, first.id) == [1, 2]
    assert (first.end_reason, first.newest.energy_joules) == (v1.END_REASON_LOST, 2 * JOULES)
    assert spooled() == []


def test_trainer_that_is_killed_after_its_target(server: LiveServer, train: Start) -> None:
    """The measurements of a killed trainer decide its trial if they reach the target."""
    process = train(server.address, "test-killed", "--lines")
    after_epochs(process, 1)
    server.kill()
    for epoch in range(2, EPOCHS + 1):
        send_line(process)
        assert read_line(process) == f"epoch {epoch}"
    os.kill(process.pid, signal.SIGKILL)
    ended(process)
    server.start()
    with Client(server.address) as client:
        assert deliver_files(client, Spool.from_env().paths(), 10.0).delivered == 1
        (trial,) = client.trials("test-killed")
    assert (trial.end_reason, trial.newest.epoch) == (v1.END_REASON_TARGET_REACHED, EPOCHS)


def test_terminated_trainer(server: LiveServer, train: Start) -> None:
    """A trainer that is terminated while the server is away was preempted, which the next delivery says."""
    process = train(server.address, "test-killed", "--lines")
    after_epochs(process, 1)
    server.kill()
    process.terminate()
    assert ended(process)[0] == -signal.SIGTERM
    server.start()
    with Client(server.address) as client:
        assert deliver_files(client, Spool.from_env().paths(), 10.0).delivered == 1
        (trial,) = client.trials("test-killed")
    assert (trial.end_reason, trial.newest.epoch) == (v1.END_REASON_PREEMPTED, 1)


def test_delivery_that_was_not_acknowledged(server: LiveServer) -> None:
    """A trial that is delivered again, because the first answer was lost, is one trial."""
    server.kill()
    bso = begun_away(server.address)
    bso.on_evaluate(0.1)
    bso.close(EndReason.ERROR)
    (path,) = Spool.from_env().paths()
    content = path.read_bytes()
    server.start()
    with Client(server.address) as client:
        for _ in range(3):
            path.write_bytes(content)
            assert deliver_files(client, [path], 10.0).delivered == 1
        (trial,) = client.trials(bso.trial.job_id)
        assert epochs(client, trial.id) == [1]
    assert trial.end_reason == v1.END_REASON_ERROR


def begun_away(address: str, **given: Any) -> BatchSizeOptimizer:
    """A training on the fallback that is ready for its first epoch."""
    bso = BatchSizeOptimizer(address, job_spec(**given), monitor=StepMonitor(), timeout=0.0, fallback="default")
    bso.get_batch_size()
    bso.on_train_begin()
    return bso


def test_resumed_trial_takes_its_file_over(server: LiveServer) -> None:
    """A launch that continues a trial does not deliver it as lost, nor does another launch meanwhile."""
    bso = begun(server.address)
    bso.on_evaluate(0.1)
    state = bso.state_dict()
    server.kill()
    bso.on_evaluate(0.2)
    bso.close(EndReason.PREEMPTED)
    server.start()
    again = BatchSizeOptimizer(server.address, job_spec(job_id=bso.trial.job_id), monitor=StepMonitor())
    again.load_state_dict(state)
    again.get_batch_size()
    with Client(server.address) as client:
        assert deliver_files(client, Spool.from_env().paths(), 10.0).delivered == 0
    (record,) = spooled()
    assert (record.end_reason, record.launch_id) == (v1.END_REASON_UNSPECIFIED, bso.trial.launch_id)
    again.on_train_begin()
    again.on_evaluate(0.3)
    with Client(server.address) as client:
        trial, measured = client.get_trial(bso.trial), list(client.measurements(bso.trial))
    assert trial.trial.status == v1.TRIAL_STATUS_RUNNING
    assert [(m.epoch, m.metric) for m in measured] == [(1, 0.1), (2, 0.3)]
    again.close()
    assert spooled() == []


def test_refused_trial_blocks_nothing(server: LiveServer, caplog: pytest.LogCaptureFixture) -> None:
    """A trial that the server refuses stays with the reason; launches deliver the others, and try it no more."""
    server.kill()
    for size in (32, 16, 8):
        bso = BatchSizeOptimizer(
            server.address, job_spec(job_id="test-refused"), monitor=StepMonitor(), timeout=0.0, fallback=size
        )
        bso.get_batch_size()
        bso.on_train_begin()
        bso.on_evaluate(0.95)
        bso.close()
    server.start()
    with Client(server.address) as client:
        client.register_job(job_spec(job_id="test-refused", batch_sizes=[8, 16]))
        paths = Spool.from_env().paths()
        assert deliver_files(client, paths, 10.0)[:2] == (2, 1)
        assert deliver_files(client, paths, 10.0)[:2] == (0, 0)
        assert deliver_files(client, paths, 10.0, refused_before=True)[:2] == (0, 1)
        assert [each.batch_size for each in client.trials("test-refused")] == [16, 8]
    (record,) = spooled()
    assert (record.batch_size, "batch_size" in record.refusal) == (32, True)
    assert "wattwise spool" in caplog.text


def test_refused_token_parks_no_trial(server: LiveServer, tmp_path: Path) -> None:
    """A token that may not name the job says nothing about its trials: the next launch delivers them."""
    job_id = "test-denied"
    server.kill()
    for size in (16, 8):
        bso = BatchSizeOptimizer(
            server.address, job_spec(job_id=job_id), monitor=StepMonitor(), timeout=0.0, fallback=size
        )
        bso.get_batch_size()
        bso.on_train_begin()
        bso.on_evaluate(0.95)
        bso.close()
    tokens = tmp_path / "tokens"
    wrong, right = issue(tokens, Role.TRAINER, "other"), issue(tokens, Role.TRAINER, "test")
    server.start("--tokens", str(tokens))
    paths = Spool.from_env().paths()
    with Client(server.address, credentials=Credentials(token=wrong)) as client:
        done = deliver_files(client, paths, 10.0)
    assert done[:2] == (0, 0)
    assert isinstance(done.failure, PermissionDeniedError)
    assert [each.refusal for each in spooled()] == ["", ""]
    with Client(server.address, credentials=Credentials(token=right)) as client:
        assert deliver_files(client, paths, 10.0) == (2, 0, None)


def test_trial_of_another_server_is_not_delivered(server: LiveServer) -> None:
    """The exact address in the file counts, not the folder's name."""
    server.kill()
    begun_away(server.address).close(EndReason.ERROR)
    (path,) = Spool.from_env().paths()
    path.write_text(path.read_text().replace(server.address, "elsewhere:50051"))
    server.start()
    with Client(server.address) as client:
        assert deliver_files(client, [path], 10.0) == (0, 0, None)
    assert path.exists()


def test_unreadable_file_blocks_nothing(server: LiveServer) -> None:
    """A file that is not a journal is left alone."""
    server.kill()
    bso = begun_away(server.address)
    bso.close(EndReason.ERROR)
    (path,) = Spool.from_env().paths()
    broken = path.with_name("broken.wattwise-trial")
    broken.write_text("{")
    os.utime(broken, (0, 0))
    server.start()
    launched_again(server.address, bso.trial.job_id)
    assert Spool.from_env().paths() == [broken]


def test_launch_waits_a_second_at_most(server: LiveServer) -> None:
    """A server that does not answer a delivery delays the launch by the second that it may take."""
    server.kill()
    begun_away(server.address).close(EndReason.ERROR)
    server.start()
    os.kill(server.process.pid, signal.SIGSTOP)
    try:
        with Client(server.address) as client:
            before = time.monotonic()
            failure = deliver_files(client, Spool.from_env().paths(), 1.0).failure
            assert 0.9 < time.monotonic() - before < 5
    finally:
        os.kill(server.process.pid, signal.SIGCONT)
    assert failure is not None
    assert len(spooled()) == 1


@pytest.mark.parametrize("spooling", [True, False])
def test_server_that_lost_its_database(
    server: LiveServer, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, *, spooling: bool
) -> None:
    """A trial that the server no longer knows goes on with one warning, and is delivered whole when it is over."""
    if not spooling:
        monkeypatch.setenv("WATTWISE_SPOOL", "off")
    bso = begun(server.address)
    bso.on_evaluate(0.1)
    server.stop()
    server.lose_database()
    server.start()
    wait_until(lambda: "no longer has trial 1" in caplog.text)
    bso.on_evaluate(0.2)
    assert not bso.training_finished
    bso.on_evaluate(0.95)
    assert bso.target_reached
    bso.close()
    with Client(server.address) as client:
        (trial,) = client.trials(bso.trial.job_id)
        assert epochs(client, trial.id) == [1, 2, 3]
        assert client.get_job(bso.trial.job_id).job.spec == running_trial(bso).info.job.spec
    assert (trial.origin, trial.end_reason) == (v1.TRIAL_ORIGIN_IMPORTED, v1.END_REASON_TARGET_REACHED)
    assert sum("no longer has" in message for message in caplog.messages) == 1
    assert spooled() == []


def test_server_with_an_older_database(server: LiveServer, caplog: pytest.LogCaptureFixture) -> None:
    """A trial that is younger than the restored database goes on and is delivered; the job's other trials stay."""
    launched_again(server.address, "test-restored")
    server.stop()
    backup = server.database.read_bytes()
    server.start()
    bso = begun(server.address, job_id="test-restored")
    bso.on_evaluate(0.1)
    server.kill()
    for path in server.database.parent.glob("wattwise.db*"):
        path.unlink()
    server.database.write_bytes(backup)
    server.start()
    wait_until(lambda: "no longer has trial 2" in caplog.text)
    bso.close(EndReason.OUT_OF_MEMORY)
    with Client(server.address) as client:
        first, second = client.trials("test-restored")
        assert epochs(client, second.id) == [1]
    assert (first.end_reason, second.end_reason) == (v1.END_REASON_PREEMPTED, v1.END_REASON_OUT_OF_MEMORY)


def test_deleted_job_stops_its_trial(server: LiveServer) -> None:
    """A job that was deleted on purpose stops its trials, and does not come back by the spool."""
    bso = begun(server.address)
    bso.on_evaluate(0.1)
    with Client(server.address) as client:
        client.delete_job(bso.trial.job_id)
        wait_until(lambda: bso.training_finished)
        bso.close()
        assert list(client.jobs()) == []
    assert spooled() == []


@pytest.mark.parametrize("ends", ["closed", "killed"])
def test_deleted_job_stays_deleted(server: LiveServer, train: Start, ends: str) -> None:
    """A trial that ends before it learns that its job was deleted does not bring the job back."""
    if ends == "killed":
        process = train(server.address, "test-deleted", "--lines", "--patient")
        after_epochs(process, 1)
        os.kill(process.pid, signal.SIGSTOP)
    else:
        bso = begun(server.address, job_id="test-deleted")
        bso.on_evaluate(0.1)
    with Client(server.address) as client:
        client.delete_job("test-deleted")
        if ends == "killed":
            os.kill(process.pid, signal.SIGKILL)
            ended(process)
            assert deliver_files(client, Spool.from_env().paths(), 10.0).delivered == 1
        else:
            bso.close()
        assert list(client.jobs()) == []
    assert spooled() == []


def left_behind(server: LiveServer, job_id: str) -> Path:
    """The file of a trial with two epochs, of which the server has one; its process did not say how it ended."""
    bso = begun(server.address, job_id=job_id)
    bso.on_evaluate(0.1)
    server.kill()
    bso.on_evaluate(0.2)
    bso.close(EndReason.PREEMPTED)
    (path,) = Spool.from_env().paths()
    content = path.read_text()
    assert "PREEMPTED" in content
    path.write_text("".join(line for line in content.splitlines(keepends=True) if "end_reason" not in line))
    server.start()
    return path


@pytest.mark.parametrize("reason", [v1.END_REASON_PREEMPTED, v1.END_REASON_ERROR, None])
@pytest.mark.parametrize("again", [False, True])
def test_deleted_trial_stays_deleted(server: LiveServer, reason: v1.EndReason.ValueType | None, *, again: bool) -> None:
    """A trial that was deleted with its job is not delivered, however it ended; nor into a newer job of the same id."""
    path = left_behind(server, "test-deleted")
    with Client(server.address) as client:
        if reason is not None:
            (trial,) = client.trials("test-deleted")
            client.end_trial(trial.id, reason)
        client.delete_job("test-deleted")
        if again:
            client.register_job(job_spec(job_id="test-deleted"))
        assert deliver_files(client, [path], 10.0)[:2] == (1, 0)
        assert [row.job.num_trials for row in client.jobs()] == ([0] if again else [])
    assert spooled() == []


def test_lost_trial_of_a_deleted_job_is_stopped(server: LiveServer) -> None:
    """A trainer whose trial was lost before its job was deleted is told to stop, as one whose trial ran."""
    bso = begun(server.address, trial_lease_seconds=1.0)
    bso.on_evaluate(0.1)
    with Client(server.address) as client:
        client.end_trial(bso.trial, v1.END_REASON_PREEMPTED)
        client.delete_job(bso.trial.job_id)
        decision = client.heartbeat(bso.trial)
    assert (decision.stop_train, "deleted" in decision.message) == (True, True)
    bso.close()
    assert spooled() == []


def test_fallback_of_a_job_that_is_deleted_meanwhile(server: LiveServer) -> None:
    """A fallback trial that began while the job existed goes with it."""
    spec = job_spec(batch_sizes=[16], job_id="test-deleted")
    with Client(server.address) as client:
        client.register_job(spec)
        trial = client.get_next_batch_size("test-deleted").trial
        client.end_trial(trial.id, v1.END_REASON_OUT_OF_MEMORY)
        bso = BatchSizeOptimizer(server.address, spec, monitor=StepMonitor(), fallback="default")
        bso.get_batch_size()
        bso.on_train_begin()
        bso.on_evaluate(0.1)
        server.kill()
        bso.close(EndReason.ERROR)
        assert [each.trial_number for each in spooled()] == [0]
        server.start()
        client.delete_job("test-deleted")
        assert deliver_files(client, Spool.from_env().paths(), 10.0)[:2] == (1, 0)
        assert list(client.jobs()) == []
    assert spooled() == []


def test_file_that_is_not_answered_blocks_nothing(server: LiveServer) -> None:
    """If the delivery of one trial fails, those behind it are delivered; the failure is returned."""
    with Middlebox(server.address, drops="ImportTrial", first=1) as box:
        spec = job_spec(job_id="test-fails")
        for launch_id in ("a", "b"):
            record = TrialRecord(box.address, job_message(spec), launch_id, 0, 16, time.time())
            Spool.from_env().journal(record).release()
        with Client(server.address) as client:
            client.register_job(spec)
        with Client(box.address, retry=False) as client:
            done = deliver_files(client, Spool.from_env().paths(), 60.0)
        assert (done.delivered, type(done.failure)) == (1, ServerUnavailableError)
        assert len(spooled()) == 1


def test_large_file_does_not_delay_a_launch(server: LiveServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A launch goes on while an earlier trial is still read, which is delivered beside the training."""
    server.kill()
    bso = begun_away(server.address)
    bso.close(EndReason.ERROR)
    server.start()
    read, may_read = TrialRecord.from_lines, threading.Event()

    def reads_slowly(lines: list[str]) -> TrialRecord:
        assert may_read.wait(60)
        return read(lines)

    monkeypatch.setattr(TrialRecord, "from_lines", reads_slowly)
    with begun(server.address, job_id=bso.trial.job_id) as following:
        assert following.trial.number == 1, "the other one is not delivered yet"
        may_read.set()
        with Client(server.address) as client:
            wait_until(lambda: len(list(client.trials(bso.trial.job_id))) == 2)


def test_trial_that_another_process_has_ended(server: LiveServer) -> None:
    """What is measured after another process, such as another rank, ended the trial as preempted is delivered."""
    with Middlebox(server.address) as box, Client(server.address) as client:
        bso = begun(box.address)
        bso.on_evaluate(0.1)
        client.end_trial(bso.trial, v1.END_REASON_PREEMPTED)
        with pytest.raises(TrainFailError):
            bso.on_evaluate(0.2)
        bso.close()
        assert epochs(client, bso.trial) == [1, 2]
        assert client.get_trial(bso.trial).trial.end_reason == v1.END_REASON_PREEMPTED
    assert spooled() == []


def _newer_reason(answer: Any) -> None:
    """Gives an interrupted trial a reason that this client does not know."""
    found = answer.trial if hasattr(answer, "trial") else answer.decision
    if found.end_reason == v1.END_REASON_PREEMPTED:
        found.end_reason = 99


async def _unimplemented(call: Call) -> AsyncIterator[bytes]:
    await call.context.abort(grpc.StatusCode.UNIMPLEMENTED, "")
    yield b""


def test_trial_that_was_interrupted_for_an_unknown_reason(server: LiveServer) -> None:
    """What the server lacks is delivered, because the status of the trial says that it can go on."""
    decisions = ("ReportResult", "Heartbeat", "LookupTrial")
    newer = Behaviour(
        "ends trials for a newer reason and has no streams",
        changes=dict.fromkeys(decisions, _newer_reason),
        streams={"StreamResults": _unimplemented},
    )
    with HostileServer(newer, server.address) as front, Client(server.address) as client:
        bso = begun(front.address)
        bso.on_evaluate(0.1)
        client.end_trial(bso.trial, v1.END_REASON_PREEMPTED)
        with pytest.raises(TrainFailError):
            bso.on_evaluate(0.2)
        bso.close()
        assert epochs(client, bso.trial) == [1, 2]
    assert spooled() == []


def test_trial_that_ends_for_an_unknown_reason_and_lacks_epochs(server: LiveServer) -> None:
    """The answer to the end of a trial decides by its status, too."""

    def interrupted(answer: v1.EndTrialResponse) -> None:
        answer.trial.MergeFrom(v1.Trial(end_reason=99, status=v1.TRIAL_STATUS_INTERRUPTED))  # type: ignore[arg-type]
        answer.trial.ClearField("newest")

    with HostileServer(Behaviour("lost an epoch", changes={"EndTrial": interrupted}), server.address) as front:
        bso = begun(front.address)
        bso.on_evaluate(0.1)
        bso.close()
        assert front.requests[-1][0] == "ImportTrial"
    assert spooled() == []


@pytest.mark.parametrize("decided", ["max epochs", "ended"])
def test_trial_that_is_over_on_the_server_leaves_the_spool(server: LiveServer, decided: str) -> None:
    """A trial that the server decided, or that was ended for good, is not kept, whatever was measured after that."""
    bso = begun(server.address, max_epochs=2)
    bso.on_evaluate(0.1)
    if decided == "ended":
        with Client(server.address) as client:
            client.end_trial(bso.trial, v1.END_REASON_OUT_OF_MEMORY)
    with pytest.raises(TrainFailError):
        bso.on_evaluate(0.2)
    bso.close()
    assert spooled() == []


def test_spellings_of_a_server_share_their_trials(server: LiveServer) -> None:
    """What a launch left for 127.0.0.1 is delivered by one that calls the server localhost."""
    server.kill()
    bso = begun_away(server.address)
    bso.close(EndReason.ERROR)
    server.start()
    port = server.address.rpartition(":")[2]
    launched_again(f"localhost:{port}", bso.trial.job_id)
    with Client(server.address) as client:
        assert [trial.end_reason for trial in client.trials(bso.trial.job_id)] == [
            v1.END_REASON_ERROR,
            v1.END_REASON_PREEMPTED,
        ]
    assert spooled() == []


def test_measurement_that_the_server_refuses_is_not_kept(server: LiveServer) -> None:
    """A refused measurement would make the server refuse the whole trial later."""

    class Overflowing(StepMonitor):
        max_power_watts = math.inf

        def end_window(self, name: str) -> Window:
            self.open.pop(name)
            return Window(time=1.0, total_energy=9e99)

    bso = BatchSizeOptimizer(server.address, job_spec(), monitor=Overflowing())
    bso.get_batch_size()
    bso.on_train_begin()
    bso.on_evaluate(0.1)
    with pytest.raises(InvalidResultError):
        bso.on_evaluate(0.2)
    server.kill()
    bso.close(EndReason.ERROR)
    assert [len(each.results) for each in spooled()] == [1]
    server.start()
    with Client(server.address) as client:
        assert deliver_files(client, Spool.from_env().paths(), 10.0)[:2] == (1, 0)
        assert epochs(client, bso.trial) == [1]


def killed_at_random(server: LiveServer, train: Start, kills: int, seed: int) -> None:
    """Trainers and the server are killed at random times; in the end nothing is lost and nothing doubled.

    Every epoch that a trainer has printed was recorded before. At the end each is on the server exactly once, and each
    trial exists once.
    """
    chance, job_id = random.Random(seed), "test-random-kills"
    printed: dict[str, int] = {}
    killed, up = 0, True
    while killed < kills:
        process = train(server.address, job_id)
        assert process.stdout is not None
        # Now and then the trainer is killed while it starts.
        output = read_line(process) + "\n" if chance.random() < 0.9 else ""
        _wait(process, chance.uniform(0.0, 0.4))
        if chance.random() < 0.4:
            if up:
                server.kill()
                killed += 1
            else:
                server.start()
            up = not up
            _wait(process, chance.uniform(0.0, 0.4))
        if process.poll() is None:
            process.kill()
            killed += 1
        rest, errors = process.communicate()
        assert "Traceback" not in errors, errors
        _note(output + rest, printed)
    if not up:
        server.start()
    last = train(server.address, job_id)
    output, errors = last.communicate(timeout=120)
    assert last.returncode == 0, errors
    _note(output, printed)
    with Client(server.address) as client:
        wait_until(lambda: not deliver_files(client, Spool.from_env().paths(), 60.0).delivered)
        assert spooled() == []
        trials = list(client.trials(job_id))
        by_request = {request: client.get_next_batch_size(job_id, launch_id=request).trial for request in printed}
        assert len(trials) == len(list(client.trials(job_id))), "every request has its trial already"
        assert len({each.id.trial_number for each in by_request.values()}) == len(printed)
        for request, epoch in printed.items():
            found = epochs(client, by_request[request].id)
            # One more may have been recorded just before the kill.
            assert found in (list(range(1, epoch + 1)), list(range(1, epoch + 2)))
        assert all(each.status != v1.TRIAL_STATUS_RUNNING for each in by_request.values())
        # Trainers that were killed before they printed their trial, or that did not get the server's answer.
        numbers = {each.id.trial_number for each in by_request.values()}
        assert {each.newest.epoch for each in trials if each.id.trial_number not in numbers} <= {0}
    ends = Counter(v1.EndReason.Name(each.end_reason) for each in by_request.values())
    kinds = Counter(v1.TrialOrigin.Name(each.origin) for each in by_request.values())
    sys.stdout.write(f"\n{killed} kills, {len(printed)} trials, {sum(printed.values())} epochs; {ends}; {kinds}\n")


def _wait(process: subprocess.Popen[str], seconds: float) -> None:
    """Waits for a time, or for the end of the process."""
    with suppress(subprocess.TimeoutExpired):
        process.wait(seconds)


def _note(output: str, printed: dict[str, int]) -> None:
    request = ""
    for line in output.splitlines():
        word, _, rest = line.partition(" ")
        if word == "trial":
            request = rest
            printed.setdefault(request, 0)
        elif word == "epoch" and rest.isdecimal():
            printed[request] = int(rest)


@pytest.mark.thorough
@pytest.mark.timeout(180)
def test_random_kills(server: LiveServer, train: Start) -> None:
    """Ten kills at random moments lose and double nothing."""
    killed_at_random(server, train, 10, seed=1)


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_many_random_kills(server: LiveServer, train: Start) -> None:
    """200 kills at random moments lose and double nothing."""
    killed_at_random(server, train, 200, seed=2)


@pytest.mark.soak
def test_cost_of_the_spool(server: LiveServer, caplog: pytest.LogCaptureFixture) -> None:
    """Prints what the journal costs per epoch, and how long a launch takes that finds 100 spooled trials."""
    caplog.set_level(logging.INFO, logger="wattwise")
    spool, spec = Spool.from_env(), job_message(job_spec(job_id="test-cost"))
    seconds = []
    for number in range(100):
        journal = spool.journal(TrialRecord(server.address, spec, f"request-{number}", 0, 16, time.time()))
        for epoch in range(1, 11):
            result = v1.TrainingResult(
                measurement=v1.Measurement(epoch=epoch, time_seconds=epoch, energy_joules=epoch, metric=0.1)
            )
            before = time.perf_counter()
            journal.add(result)
            seconds.append(time.perf_counter() - before)
        journal.release()
    seconds.sort()
    sys.stdout.write(f"\njournal: median {1e3 * seconds[500]:.2f} ms, 99 % {1e3 * seconds[990]:.2f} ms per epoch\n")
    with Client(server.address) as client:
        client.register_job(job_spec(job_id="test-cost"))
    before = time.perf_counter()
    launched_again(server.address, "test-cost")
    launch = time.perf_counter() - before
    with Client(server.address) as client:
        delivered = sum(trial.origin == v1.TRIAL_ORIGIN_IMPORTED for trial in client.trials("test-cost"))
        sys.stdout.write(f"launch with 100 spooled trials: {launch:.2f} s, {delivered} delivered\n")
        while deliver_files(client, spool.paths(), 60.0).delivered:
            pass
        imported = [trial for trial in client.trials("test-cost") if trial.origin == v1.TRIAL_ORIGIN_IMPORTED]
        assert (len(imported), {trial.newest.epoch for trial in imported}, spooled()) == (100, {10}, [])
