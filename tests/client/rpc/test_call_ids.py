"""Call ids in the client's errors and in the server's log."""

from __future__ import annotations

import pytest
from wattwise import BatchSizeOptimizer, Client, v1
from wattwise.errors import JobNotFoundError, NoBatchSizeLeftError

from tests.client.training.script import StepMonitor, begun, job_spec
from tests.waiting import wait_until
from tests.watched import WatchedServer


def test_each_call_has_an_id(watched: WatchedServer) -> None:
    """Each call of a client has its own id, in its error and in the server's log."""
    ids = []
    with Client(watched.address) as client:
        for _ in range(2):
            with pytest.raises(JobNotFoundError) as caught:
                client.get_job("test-unknown")
            assert str(caught.value).endswith(f" (call {caught.value.call_id})")
            ids.append(caught.value.call_id)
        with pytest.raises(JobNotFoundError) as caught:
            next(client.watch_job("test-unknown"))
        ids.append(caught.value.call_id)
    assert len(set(ids)) == 3
    assert [line["call_id"] for line in watched.events("call refused")] == ids


def test_id_of_a_client(watched: WatchedServer) -> None:
    """All calls of a client with a call id have that id."""
    with Client(watched.address, call_id="nightly 7") as client:
        client.register_job(job_spec())
        with pytest.raises(JobNotFoundError, match=r"\(call nightly 7\)"):
            client.get_job("test-unknown")
    lines = watched.events("job registered") + watched.events("call refused")
    assert [line["call_id"] for line in lines] == ["nightly 7"] * 2


def test_launch_has_one_id(watched: WatchedServer) -> None:
    """From registration to end, in calls and streams, a launch has one id in the log."""
    with begun(watched.address) as bso:
        bso.on_evaluate(0.1)
        bso.on_evaluate(0.95)
    events = ["job registered", "trial dispatched", "trial decided", "best known changed"]
    wait_until(lambda: len(watched.events("trial decided")) == 1)
    assert [line["event"] for line in watched.lines() if line.get("call_id") == bso.trial.launch_id] == events
    assert watched.events("trial decided")[0]["method"] == "StreamResults"


def test_error_of_a_launch_has_its_id(watched: WatchedServer) -> None:
    """An error of `get_batch_size` has the id of the launch, the same when it is called again."""
    spec = job_spec(batch_sizes=[16], max_epochs=1)
    with Client(watched.address) as client:
        job_id = client.register_job(spec).job.spec.job_id
        trial = client.get_next_batch_size(job_id).trial.id
        client.report_result(
            v1.TrainingResult(trial=trial, measurement=v1.Measurement(time_seconds=1, metric=0.1, epoch=1))
        )
    bso = BatchSizeOptimizer(watched.address, spec, monitor=StepMonitor())
    ids = []
    for _ in range(2):
        with pytest.raises(NoBatchSizeLeftError) as caught:
            bso.get_batch_size()
        ids.append(caught.value.call_id)
        assert watched.events("call refused")[-1]["call_id"] == ids[-1]
    assert ids[0] == ids[1] != ""
