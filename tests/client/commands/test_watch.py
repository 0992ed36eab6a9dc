"""`wattwise jobs watch`, against the real server."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import chain

import pytest
from wattwise import v1
from wattwise.commands.watch import _JobTable, _trial_changes, _TrialTable
from wattwise.rpc.client import Client

from tests.jobs import Trainer, monitor_of
from tests.live_server import LiveServer
from tests.terminal import plain_lines

_HEED = "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); "
_MAIN = "from wattwise.commands.main import main; sys.exit(main())"


@contextmanager
def watching(*words: str) -> Iterator[subprocess.Popen[str]]:
    """A watch in a pipe."""
    command = [sys.executable, "-c", _HEED + _MAIN, "jobs", "watch", *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


_read: dict[int, list[str]] = {}


def line_with(process: subprocess.Popen[str], *facts: str) -> str:
    """The first line that has all these words; those of the job and of its trials come in any order."""
    assert process.stdout is not None
    lines = _read.setdefault(process.pid, [])
    for line in chain(lines[:], iter(process.stdout.readline, "")):
        if line not in lines:
            lines.append(line)
        if set(facts) <= set(line.split()):
            return line
    raise AssertionError(f"no line with {facts} in {lines}")


def delete(server: LiveServer, job_id: str) -> None:
    """Deletes a job."""
    server.admin.DeleteJob(v1.DeleteJobRequest(job_id=job_id))


def test_trials_of_a_job(stub: v1.BatchSizeOptimizerStub, grpc_server: LiveServer) -> None:
    """Every epoch and end of a trial is a line, by ascending time; the deletion of the job ends the watch with 0."""
    trainer = Trainer(stub)
    trial = trainer.next()
    with watching(trainer.job_id) as process:
        first = line_with(process, "trial", "trial=1", "status=running", "batch_size=16", "target_metric=0.9")
        assert first[:4].isdecimal()
        assert first.split()[0].endswith("Z")
        trainer.report(trial, 10.0, metric=0.5)
        line_with(process, "trial", "trial=1", "epoch=1", "metric=0.5", "cost_joules=10")
        trainer.report(trial, 20.0, metric=0.95, epoch=2)
        line_with(process, "trial=1", "status=decided", "end_reason=target_reached", "target_reached=true")
        line_with(process, "job", f"job={trainer.job_id}", "trials=1", "expected_cost_joules=20")
        delete(grpc_server, trainer.job_id)
        line_with(process, "deleted", f"job={trainer.job_id}")
        assert (process.wait(30), process.stderr and process.stderr.read()) == (0, "")
        times = [line.split()[0] for line in _read[process.pid]]
        assert times == sorted(times)


def test_running_jobs(stub: v1.BatchSizeOptimizerStub, grpc_server: LiveServer) -> None:
    """Jobs that run or change are lines with their figures; Ctrl-C ends the watch with status 130."""
    trainer = Trainer(stub, job_id_prefix="watched", job_id="watched-1")
    trainer.run(10.0)
    trial = trainer.next()
    with watching("--prefix", "watched") as process:
        line_with(process, "job=watched-1", "running=1", "deliveries=1", "spent_joules=10")
        trainer.report(trial, 5.0)
        line_with(process, "job=watched-1", "running=0", "deliveries=2", "spent_joules=15")
        delete(grpc_server, "watched-1")
        line_with(process, "deleted", "job=watched-1")
        process.send_signal(signal.SIGINT)
        assert (process.wait(30), process.stderr and process.stderr.read()) == (130, "")


def test_json(stub: v1.BatchSizeOptimizerStub, grpc_server: LiveServer) -> None:
    """With --json each line is an object with the fields of the API."""
    trainer = Trainer(stub)
    trainer.next()
    with watching(trainer.job_id, "--json") as process:
        assert process.stdout is not None
        found = [json.loads(process.stdout.readline()) for _ in range(2)]
        delete(grpc_server, trainer.job_id)
        assert json.loads(process.stdout.read().splitlines()[-1]) == {"deleted": trainer.job_id}
    assert sorted(sorted(each) for each in found) == [["details", "job"], ["trial"]]
    assert next(each["trial"]["batch_size"] for each in found if "trial" in each) == 16


def test_server_that_goes_away(server: LiveServer) -> None:
    """A server that is killed is waited for, which is said in one line; the watch goes on and repeats no line."""
    trainer = Trainer(server.trainer)
    trial = trainer.next()
    with watching(trainer.job_id, "--server", server.address) as process:
        line_with(process, "trial=1", "status=running")
        # No line shows the lease.
        server.trainer.Heartbeat(v1.HeartbeatRequest(trial=trial.id))
        server.kill()
        assert process.stderr is not None
        assert "waiting for the server" in process.stderr.readline()
        server.start()
        time.sleep(1)
        trainer.report(trial, 10.0)
        line_with(process, "trial=1", "status=decided")
        assert sum({"trial=1", "status=running"} <= set(line.split()) for line in _read[process.pid]) == 1
        delete(server, trainer.job_id)
        assert process.wait(30) == 0
        assert process.stderr.read().count("\n") <= 1


def test_trial_that_ends_before_its_stream_is_open(stub: v1.BatchSizeOptimizerStub, grpc_server: LiveServer) -> None:
    """A trial that was seen running and ended before the stream was open is the first change."""
    trainer = Trainer(stub)
    trainer.report(trainer.next(), 10.0)
    running = {1}
    with Client(grpc_server.address) as client:
        change = next(_trial_changes(client, trainer.job_id, running))
    assert (change.id.trial_number, change.HasField("end_time")) == (1, True)
    assert not running


def on_screen(words: Sequence[str], until: str, after: str, end: Iterator[None], **environment: str) -> list[str]:
    """All lines that a watch on a terminal wrote: a change follows `until`, and `after` is awaited."""
    ours, theirs = pty.openpty()
    surroundings = {**os.environ, "COLUMNS": "80", "LINES": "24", "TERM": "xterm", **environment}
    command = [sys.executable, "-c", f"import sys; {_MAIN}", "jobs", "watch", *words]
    with os.fdopen(ours, "rb", buffering=0) as terminal:
        process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=surroundings)
        os.close(theirs)
        written = ""
        waited = [until, after]
        try:
            while part := terminal.read(4096):
                written += part.decode()
                if waited and waited[0] in written:
                    waited.pop(0)
                    next(end, None)
        except OSError:
            # The terminal of a process that has ended.
            pass
        assert process.wait(30) == 0
    return plain_lines(written.replace("\r\n", "\n"))


@pytest.mark.parametrize("terminal", ["xterm", "dumb"])
def test_terminal(stub: v1.BatchSizeOptimizerStub, grpc_server: LiveServer, terminal: str) -> None:
    """A terminal shows a table of 80 columns that follows the trials; one that cannot move its cursor gets lines."""
    trainer = Trainer(stub)
    trial = trainer.next()

    def steps() -> Iterator[None]:
        trainer.report(trial, 10.0)
        yield
        delete(grpc_server, trainer.job_id)
        yield

    live = terminal == "xterm"
    lines = on_screen(
        [trainer.job_id], "running", "reached" if live else "decided", steps(), TERM=terminal, NO_COLOR="1"
    )
    text = "\n".join(lines)
    assert ("0.95 / 0.9" in text) is live
    assert ("status=decided" in text) is not live
    if live:
        assert max(map(len, lines)) <= 80
        assert f"{trainer.job_id} was deleted" in text
        assert "The next launch gets 16, too." in text


def test_estimates_are_marked(stub: v1.BatchSizeOptimizerStub, grpc_server: LiveServer) -> None:
    """On a terminal joules that are estimates have a mark among measured ones, and a note; lines have a fact."""
    trainer = Trainer(stub)
    trainer.run(10.0, monitor=monitor_of("nvml"))
    trial = trainer.next()

    def steps() -> Iterator[None]:
        trainer.report(trial, 12.5, monitor=monitor_of("estimate"))
        yield
        delete(grpc_server, trainer.job_id)
        yield

    lines = on_screen([trainer.job_id], "running", "~12.5 J", steps(), TERM="xterm", NO_COLOR="1")
    text = "\n".join(line for line in lines if not line.startswith("used now"))
    assert "~10.0 J" not in text
    assert "~ marks estimates, wholly or in part." in text

    other = Trainer(stub)
    other.run(10.0, monitor=monitor_of("estimate"))
    running = other.next()
    with watching(other.job_id) as process:
        line_with(process, "job", "expected_cost_joules=10", "estimate=yes")
        line_with(process, "trial=2", "status=running")
        other.report(running, 5.0, monitor=monitor_of("estimate", "nvml"))
        line_with(process, "trial=2", "cost_joules=5", "estimate=partly")
        delete(grpc_server, other.job_id)
        assert process.wait(30) == 0


@pytest.mark.parametrize(("running", "heading"), [(0, "no jobs have"), (1, "1 job has"), (2, "2 jobs have")])
def test_heading_of_the_jobs(running: int, heading: str) -> None:
    """The table of jobs says how many of them have running trials."""
    table = _JobTable()
    for number in range(2):
        summary = v1.JobSummary(num_running_trials=int(number < running))
        table.take(v1.JobListing(job=v1.Job(spec=v1.JobSpec(job_id=f"job-{number}")), summary=summary))
    assert next(iter(table.draw(80, 10))) == f"{heading} running trials"


@pytest.mark.parametrize(
    ("best", "used"),
    [(0, "batch size 16."), (16, "batch size 16, 3.00 kJ per model expected."), (8, "batch size 16.")],
)
def test_heading_of_a_job(best: int, used: str) -> None:
    """The table of a job says which batch size is used now, what it costs if that is known, and what comes next."""
    job = v1.Job(spec=v1.JobSpec(job_id="job"), batch_size_in_use=16, available_batch_sizes=[16], num_trials=1)
    if best:
        job.best_known_batch_size, job.best_known_cost = best, 3000.0
    table = _TrialTable(v1.GetJobResponse(job=job), ())
    assert list(table.draw(80, 10))[:2] == ["job: idle, 1 trial, target: metric at least 0", f"used now: {used}"]
    table.take(v1.PreviewNextResponse(choices=[v1.PreviewedChoice(batch_size=64)]))
    assert list(table.draw(80, 10))[1] == f"used now: {used} The next launch tries 64."
    assert list(table.draw(20, 10))[1] == "used now: batch siz…"
