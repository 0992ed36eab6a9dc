"""A call's name: in the client's errors and in the server's log."""

from __future__ import annotations

import pytest
from wattwise import BatchSizeOptimizer, Client, JobNotFoundError, NoBatchSizeConvergedError, v1

from tests.client.training.script import StepMonitor, begun, job_spec
from tests.waiting import wait_until
from tests.watched import WatchedServer


def test_error_names_its_call_as_the_log_does(watched: WatchedServer) -> None:
    """Each call of a client has a name of its own, that its error shows and the server's line bears."""
    ids = []
    with Client(watched.address) as client:
        for _ in range(2):
            with pytest.raises(JobNotFoundError) as caught:
                client.get_job("test-nobody")
            assert str(caught.value).endswith(f" (request {caught.value.request_id})")
            ids.append(caught.value.request_id)
        with pytest.raises(JobNotFoundError) as caught:
            next(client.watch_job("test-nobody"))
        ids.append(caught.value.request_id)
    assert len(set(ids)) == 3
    assert [line["request_id"] for line in watched.events("call refused")] == ids


def test_client_can_be_named(watched: WatchedServer) -> None:
    """All calls of a client that is given a name bear it."""
    with Client(watched.address, request_id="nightly 7") as client:
        client.register_job(job_spec())
        with pytest.raises(JobNotFoundError, match=r"\(request nightly 7\)"):
            client.get_job("test-nobody")
    lines = watched.events("job registered") + watched.events("call refused")
    assert [line["request_id"] for line in lines] == ["nightly 7"] * 2


def test_launch_has_one_name(watched: WatchedServer) -> None:
    """From registration to its end, over calls and streams, a launch is found in the log under one name."""
    with begun(watched.address) as bso:
        bso.on_evaluate(0.1)
        bso.on_evaluate(0.95)
    events = ["job registered", "trial dispatched", "trial decided"]
    wait_until(lambda: len(watched.events("trial decided")) == 1)
    assert [line["event"] for line in watched.lines() if line.get("request_id") == bso.request_id] == events
    assert watched.events("trial decided")[0]["method"] == "StreamResults"


def test_error_of_a_launch_bears_its_name(watched: WatchedServer) -> None:
    """What keeps a launch from its batch size names the launch."""
    spec = job_spec(batch_sizes=[16], max_epochs=1)
    with Client(watched.address) as client:
        job_id = client.register_job(spec).job.spec.job_id
        trial = client.get_next_batch_size(job_id).trial.id
        client.report_result(v1.TrainingResult(trial=trial, metric=0.1, current_epoch=1))
    bso = BatchSizeOptimizer(watched.address, spec, monitor=StepMonitor())
    with pytest.raises(NoBatchSizeConvergedError) as caught:
        bso.get_batch_size()
    assert caught.value.request_id == bso.request_id
    assert watched.events("call refused")[-1]["request_id"] == bso.request_id
