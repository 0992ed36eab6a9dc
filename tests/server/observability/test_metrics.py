"""The metrics after known calls."""

from __future__ import annotations

import re
import socket
import sqlite3
import urllib.error
import urllib.request
from contextlib import closing, suppress
from pathlib import Path

import grpc
import pytest
from prometheus_client.parser import text_string_to_metric_families
from wattwise import v1
from wattwise.rpc.calls import new_id

from tests.jobs import Trainer, job_spec, monitor_of, result
from tests.refusals import refused
from tests.server.usecases.test_leases import get
from tests.waiting import wait_until
from tests.watched import WatchedServer


def test_calls_are_counted_by_method_and_status(watched: WatchedServer) -> None:
    """Every call counts once under its status, and its time once under its method."""
    job = Trainer(watched.trainer)
    job.run(20.0)
    for _ in range(3):
        with refused():
            job.report(v1.Trial(id=v1.TrialId(job_id="nobody", launch_id="l", trial_number=1)), 1.0)
    wait_until(lambda: watched.figure("wattwise_calls_total", code="NOT_FOUND") == 3)
    for method in ("RegisterJob", "GetNextBatchSize", "ReportResult"):
        assert watched.figure("wattwise_calls_total", method=method, code="OK") == 1
    assert watched.figure("wattwise_calls_total") == 6
    assert watched.figure("wattwise_call_seconds_count", method="ReportResult") == 4
    assert 0 < watched.figure("wattwise_call_seconds_sum", method="ReportResult") < 60


def test_retries_and_repeated_reports_count_once(watched: WatchedServer) -> None:
    """A retried request is one trial, a repeated report one epoch; a refused one counts nothing."""
    job = Trainer(watched.trainer, eta_knob=0.5)
    trial = job.next("retried")
    assert job.next("retried") == trial
    for cost, epoch, time in ((50.0, 1, 2.0), (50.0, 1, 2.0), (80.0, 2, 2.5)):
        job.report(trial, cost, metric=0.1, epoch=epoch, time=time)
    with refused():
        job.report(trial, 70.0, epoch=3, time=4.0)
    assert watched.figure("wattwise_trials_dispatched_total", origin="search") == 1
    assert watched.figure("wattwise_energy_joules_total") == 80.0
    assert watched.figure("wattwise_training_seconds_total") == 2.5
    assert watched.figure("wattwise_cost_joules_total") == 0.5 * 80 + 0.5 * 100 * 2.5
    assert watched.figure("wattwise_running_trials") == 1
    job.report(trial, 90.0, epoch=3, time=4.0)
    job.report(trial, 90.0, epoch=3, time=4.0)
    assert watched.figure("wattwise_trials_ended_total", origin="search", reason="target_reached") == 1
    assert watched.figure("wattwise_energy_joules_total", origin="search") == 90.0
    assert watched.figure("wattwise_running_trials") == 0


def test_trials_are_counted_by_origin_and_end(watched: WatchedServer) -> None:
    """Dispatches and ends by origin, and jobs created and deleted; a confirmed registration counts nothing."""
    pruning, bandit = Trainer(watched.trainer), Trainer(watched.trainer, num_pruning_rounds=0, max_epochs=1)
    watched.trainer.RegisterJob(v1.RegisterJobRequest(job=bandit.spec))
    bandit.run(10.0, converges=False)
    pruning.end(pruning.next(), v1.END_REASON_OUT_OF_MEMORY)
    pruning.next()
    assert watched.figure("wattwise_jobs") == 2
    watched.admin.DeleteJob(v1.DeleteJobRequest(job_id=pruning.job_id))
    for reason in ("max_epochs", "out_of_memory", "job_deleted"):
        assert watched.figure("wattwise_trials_ended_total", origin="search", reason=reason) == 1
    assert watched.figure("wattwise_trials_ended_total") == 3
    assert watched.figure("wattwise_trials_dispatched_total", origin="search") == 3
    assert watched.figure("wattwise_trials_dispatched_total", origin="requested") == 0
    assert watched.figure("wattwise_jobs") == 1
    assert watched.figure("wattwise_jobs_registered_total") == 2
    assert watched.figure("wattwise_jobs_deleted_total") == 1
    assert watched.figure("wattwise_running_trials") == 0


def test_lost_and_revived_trials_balance(watched: WatchedServer) -> None:
    """A revived trial counts as running again; its earlier reports are not counted twice."""
    job = Trainer(watched.trainer, trial_lease_seconds=1)
    trial = job.next()
    job.report(trial, 10.0, metric=0.1)
    wait_until(lambda: get(watched, trial).status == v1.TRIAL_STATUS_INTERRUPTED)
    assert watched.figure("wattwise_leases_lost_total") == 1
    assert watched.figure("wattwise_running_trials") == 0
    job.report(trial, 15.0, epoch=2)
    assert watched.figure("wattwise_trials_revived_total") == 1
    assert watched.figure("wattwise_trials_ended_total", reason="lost") == 1
    assert watched.figure("wattwise_trials_ended_total", reason="target_reached") == 1
    assert watched.figure("wattwise_energy_joules_total") == 15.0
    assert watched.figure("wattwise_running_trials") == 0


def test_failed_commit_is_not_counted_as_done(watched: WatchedServer) -> None:
    """A commit that fails counts as a failure and not as a trial; its retry counts as a trial."""
    job = Trainer(watched.trainer)
    with closing(sqlite3.connect(watched.database, isolation_level=None)) as other:
        other.execute("CREATE TRIGGER full BEFORE INSERT ON trials BEGIN SELECT RAISE(ABORT, 'full'); END")
        with refused() as refusal:
            job.next("retried")
        assert refusal.code == grpc.StatusCode.UNAVAILABLE
        assert watched.figure("wattwise_trials_dispatched_total") == 0
        assert watched.figure("wattwise_running_trials") == 0
        assert watched.figure("wattwise_commit_failures_total") == 1
        other.execute("DROP TRIGGER full")
    job.next("retried")
    assert watched.figure("wattwise_trials_dispatched_total") == 1
    assert watched.figure("wattwise_commit_failures_total") == 1


def test_commits_are_counted_with_their_rows(watched: WatchedServer) -> None:
    """Sequential calls are one commit each; a registration is a job, four arms and an event, a report one row."""
    job = Trainer(watched.trainer)
    assert watched.figure("wattwise_commit_rows_count") == 1
    assert watched.figure("wattwise_commit_rows_sum") == 6
    trial = job.next()
    before = watched.figure("wattwise_commit_rows_sum")
    job.report(trial, 1.0, metric=0.1)
    job.report(trial, 1.0, metric=0.1)
    job.heartbeat(trial)
    assert watched.figure("wattwise_commit_rows_sum") == before + 1
    assert watched.figure("wattwise_commit_seconds_count") == 3


def test_streams_are_counted_by_message_and_not_timed(watched: WatchedServer) -> None:
    """An open stream is in the gauge, its messages are counted, and its end is one call without a duration."""
    job = Trainer(watched.trainer)
    trial, states = job.next(), watched.admin.WatchJob(v1.WatchJobRequest(job_id=job.job_id))
    next(states)
    requests = [v1.StreamResultsRequest(result=result(trial, 1.0, metric=0.1, epoch=n)) for n in (1, 2, 3)]
    assert len(list(watched.trainer.StreamResults(iter(requests)))) == 3
    assert watched.figure("wattwise_open_streams", method="WatchJob") == 1
    assert watched.figure("wattwise_stream_messages_total", method="StreamResults", direction="received") == 3
    assert watched.figure("wattwise_stream_messages_total", method="StreamResults", direction="sent") == 3
    assert watched.figure("wattwise_stream_messages_total", method="WatchJob", direction="received") == 1
    assert watched.figure("wattwise_stream_messages_total", method="WatchJob", direction="sent") >= 1
    states.cancel()
    wait_until(lambda: watched.figure("wattwise_open_streams") == 0)
    assert watched.figure("wattwise_calls_total", method="WatchJob", code="CANCELLED") == 1
    assert watched.figure("wattwise_calls_total", method="StreamResults", code="OK") == 1
    assert watched.figure("wattwise_call_seconds_count", method="StreamResults") == 0
    assert watched.figure("wattwise_call_seconds_count", method="WatchJob") == 0


def test_cancelled_and_expired_calls_are_counted(watched: WatchedServer) -> None:
    """An expired deadline has its own code; many calls cancelled at once are all counted and do no harm."""
    job = Trainer(watched.trainer)
    with suppress(grpc.RpcError):
        list(watched.admin.WatchJob(v1.WatchJobRequest(job_id=job.job_id), timeout=0.3))
    wait_until(lambda: watched.figure("wattwise_calls_total", code="DEADLINE_EXCEEDED") == 1)
    requests = [v1.GetNextBatchSizeRequest(job_id=job.job_id, launch_id=new_id()) for _ in range(80)]
    # As many as one connection may have, so that none waits for the end of another.
    pending = [watched.trainer.GetNextBatchSize.future(request) for request in requests]
    for call in pending[::2]:
        call.cancel()
    for call in pending[1::2]:
        call.result()
    wait_until(lambda: watched.figure("wattwise_running_trials") == len(get_trials(watched, job)))
    lines = watched.events("trial dispatched")
    assert len(lines) == len(get_trials(watched, job))
    assert all(line["peer"] and line["call_id"] for line in lines), "though some were committed after their calls"


def get_trials(server: WatchedServer, job: Trainer) -> list[v1.Trial]:
    """All trials of a job."""
    return list(server.admin.ListTrials(v1.ListTrialsRequest(job_id=job.job_id, page_size=1000)).trials)


def test_energy_is_counted_by_its_monitor(watched: WatchedServer) -> None:
    """Estimated and measured energy have separate labels; kinds without a label share one."""
    failed = v1.Monitor(kinds=["rapl"], quality=v1.ENERGY_QUALITY_PARTLY_ESTIMATED)
    both = monitor_of("rapl", "nvml")
    for monitor in (
        monitor_of("estimate"),
        monitor_of("nvml"),
        None,
        both,
        monitor_of("a wattmeter on the wall"),
        failed,
    ):
        job = Trainer(watched.trainer)
        job.report(job.next(), 10.0, metric=0.1, monitor=monitor)
    for label, joules in {"estimate": 10.0, "nvml": 10.0, "unknown": 10.0, "nvml+rapl": 10.0, "other": 20.0}.items():
        assert watched.figure("wattwise_energy_joules_total", origin="search", monitor=label) == joules
    assert watched.figure("wattwise_energy_joules_total") == 60.0


def test_clients_cannot_add_series(watched: WatchedServer) -> None:
    """Method names and job ids that clients choose add no labels: unknown methods share one."""
    job = Trainer(watched.trainer, job_id="test-secret-project")
    job.report(job.next(), 1.0, metric=0.1, monitor=monitor_of("test-monitor"))
    for name in ("First", "Second", "wattwise.v1.JobReader"):
        call = watched.channel.unary_unary(f"/wattwise.v1.JobReader/{name}", bytes, bytes)
        with pytest.raises(grpc.RpcError) as caught:
            call(b"")
        assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
    with refused():
        watched.admin.GetJob(v1.GetJobRequest(job_id="test-not-there"))
    assert watched.figure("wattwise_calls_total", method="unknown", code="UNIMPLEMENTED") == 3
    text = watched.scrape()
    assert not re.search("First|Second|test-", text)
    labels = {label for family in text_string_to_metric_families(text) for s in family.samples for label in s.labels}
    of_calls, of_trials = {"method", "code", "direction", "le"}, {"origin", "reason", "monitor", "result", "verdict"}
    assert labels == of_calls | of_trials | {"quantity", "version", "grpc", "python"}


@pytest.mark.thorough
@pytest.mark.parametrize("callers", [100, pytest.param(2_500, marks=pytest.mark.soak)])
def test_series_do_not_follow_callers(tmp_path: Path, callers: int) -> None:
    """However many jobs, labels, agents, tokens and methods callers name, the series stay, and memory is of jobs."""

    def calls(first: int) -> None:
        trainer, admin, channel = watched.trainer, watched.admin, watched.channel
        for number in range(first, first + callers):
            metadata = (
                ("x-request-id", f"request-{number}"),
                ("user-agent", f"agent-{number}"),
                ("authorization", f"Bearer token-{number}"),
                ("traceparent", f"00-{number:032x}-{number + 1:016x}-01"),
            )
            job_id = f'test-{number}"}} 1 # TYPE wattwise_{number} counter \\'
            trainer.RegisterJob(v1.RegisterJobRequest(job=job_spec(job_id=job_id)), metadata=metadata)
            request = v1.GetNextBatchSizeRequest(
                job_id=job_id, launch_id=new_id(), labels={f"key-{number}": f'"value-{number}'}
            )
            trial = trainer.GetNextBatchSize(request, metadata=metadata).trial
            monitor = monitor_of(f"monitor-{number}")
            trainer.ReportResult(v1.ReportResultRequest(result=result(trial, 1.0, monitor=monitor)), metadata=metadata)
            with refused():
                admin.GetJob(v1.GetJobRequest(job_id=f"missing-{number}"), metadata=metadata)
            with pytest.raises(grpc.RpcError):
                channel.unary_unary(f"/evil.Service{number}/Method{number}", bytes, bytes)(b"", metadata=metadata)

    def series() -> set[str]:
        return {line.rpartition(" ")[0] for line in watched.scrape().splitlines() if line[:1] != "#"}

    with WatchedServer(tmp_path) as watched:
        watched.start("--max-jobs-per-prefix", "0")
        calls(1)
        # The figures of jobs are computed in the background.
        wait_until(lambda: "wattwise_figures_timestamp_seconds" in series())
        before, used = series(), watched.figure("process_resident_memory_bytes")
        calls(callers + 1)
        assert series() == before
        assert len(before) < 1_100
        assert watched.figure("process_resident_memory_bytes") - used < 20_000_000 + callers * 10_000


def test_restarted_server_counts_what_the_database_holds(watched: WatchedServer) -> None:
    """The gauges of jobs and running trials are read from the database; the counters restart at 0."""
    job = Trainer(watched.trainer)
    trial = job.next()
    job.report(trial, 10.0, metric=0.1)
    watched.kill()
    watched.start()
    assert watched.figure("wattwise_jobs") == 1
    assert watched.figure("wattwise_running_trials") == 1
    job.report(trial, 12.0, metric=0.1, epoch=2)
    assert watched.figure("wattwise_energy_joules_total") == 2.0
    assert watched.figure("wattwise_build_info") == 1


def test_only_metrics_are_served_and_the_port_closes(watched: WatchedServer) -> None:
    """Another path is 404, and the port is closed when the server has stopped."""
    url = watched.metrics_url
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(url.replace("/metrics", "/etc/passwd"), timeout=10)  # noqa: S310 - it is http
    assert caught.value.code == 404
    caught.value.close()
    assert watched.stop() == 0
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(url, timeout=10)  # noqa: S310 - it is http


def test_restarted_server_gets_its_port_again(watched: WatchedServer) -> None:
    """A scrape just before the shutdown does not block the port for the next server."""
    (place,) = re.findall(r"//([^/]+)/", watched.metrics_url)
    host, _, port = place.partition(":")
    with socket.create_connection((host, int(port)), timeout=10) as scrape:
        scrape.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
        while scrape.recv(65536):
            pass
    # The server closed it first: its side of the connection lingers in the kernel.
    assert watched.stop() == 0
    watched.start("--metrics-address", place)
    assert place in watched.metrics_url


def test_idle_connections_do_not_pile_up(watched: WatchedServer) -> None:
    """Silent connections are limited, and closed after a while."""
    host, port = re.findall(r"//(.+):(\d+)/", watched.metrics_url)[0]
    idle = [socket.create_connection((host, int(port)), timeout=10) for _ in range(30)]
    # Those beyond the places there are were hung up on.
    wait_until(lambda: sum(is_closed(connection) for connection in idle) == 22)
    for connection in idle:
        connection.close()

    def answers() -> bool:
        with suppress(OSError):
            return bool(watched.scrape())
        return False

    wait_until(answers)


def is_closed(connection: socket.socket) -> bool:
    """Whether the server has closed the connection."""
    connection.setblocking(False)
    try:
        return connection.recv(1, socket.MSG_PEEK) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True
