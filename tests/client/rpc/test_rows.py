"""Lists: their rows, page by page, and as a table of pandas."""

from __future__ import annotations

import sys
from datetime import datetime, timedelta, timezone

import pytest
from wattwise import AsyncClient, Client, EndReason, v1

from tests.client.training.script import begun, job_spec


def _trained(address: str) -> str:
    """A job with a trial that reached its target and one that runs."""
    bso = begun(address)
    bso.on_evaluate(0.95)
    with Client(address) as client:
        client.get_next_batch_size(bso.trial.job_id, labels={"host": "node-7"})
    return bso.trial.job_id


def test_pages_are_read_when_they_are_needed(grpc_addr: str) -> None:
    """A list is an iterator over all pages; the trials of several jobs come in the order of their starts."""
    with Client(grpc_addr) as client:
        jobs = [
            client.register_job(job_spec(job_id_prefix="rows-", job_id=f"rows-{number}")).job.spec.job_id
            for number in range(2)
        ]
        for job_id in (*jobs, *jobs):
            client.get_next_batch_size(job_id)
        trials = client.trials(jobs[0], page_size=1)
        assert next(trials).id.trial_number == 1
        client.get_next_batch_size(jobs[0])
        assert [trial.id.trial_number for trial in trials] == [2, 3]
        found = [trial.id.job_id for trial in client.trials(job_id_prefix="rows-", newest_first=True)]
    assert found == [jobs[0], *reversed((*jobs, *jobs))]


async def test_list_is_closed(grpc_addr: str) -> None:
    """A list that is closed has no further row."""
    job_id = _trained(grpc_addr)
    with Client(grpc_addr) as client:
        trials = client.trials(job_id, page_size=1)
        assert next(trials).id.trial_number == 1
        trials.close()
        assert list(trials) == []
    async with AsyncClient(grpc_addr) as awaiting:
        awaited = awaiting.trials(job_id, page_size=1)
        assert (await anext(awaited)).id.trial_number == 1
        await awaited.aclose()
        assert [trial async for trial in awaited] == []


async def test_representation(grpc_addr: str) -> None:
    """It says how rows are read."""
    with Client(grpc_addr) as client:
        assert "to_frame()" in repr(client.jobs())
    async with AsyncClient(grpc_addr) as client:
        assert "to_frame()" in repr(client.jobs())


def test_table_without_pandas(grpc_addr: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error says what to install."""
    monkeypatch.setitem(sys.modules, "pandas", None)
    with Client(grpc_addr) as client, pytest.raises(ImportError, match="pip install pandas"):
        client.jobs().to_frame()


@pytest.mark.trainers
async def test_table(grpc_addr: str) -> None:
    """A row has the fields of its message: numbers, times, names of enums, and those of nested messages."""
    pytest.importorskip("pandas", reason="needs pandas: make test-libraries")
    job_id = _trained(grpc_addr)
    with Client(grpc_addr) as client:
        trials = client.trials(job_id).to_frame()
        measured = client.measurements(v1.TrialId(job_id=job_id, trial_number=1)).to_frame()
        nothing = client.trials(job_id, batch_size=8, end_reasons=[v1.END_REASON_LOST]).to_frame()
        jobs = client.jobs(job_id_prefix=job_id).to_frame()
        summaries = client.jobs(job_id_prefix=job_id, with_summaries=True).to_frame()
    assert trials["id.trial_number"].tolist() == [1, 2]
    assert trials["end_reason"][0] == EndReason.TARGET_REACHED
    assert trials[["end_reason", "cost"]].isna().to_numpy().tolist() == [[False, False], [True, True]]
    assert trials["newest.metric"][0] == 0.95
    assert trials["newest.epoch"].isna().tolist() == [False, True]
    assert trials["labels"][1] == {"host": "node-7"}
    assert trials["start_time"][0] - datetime.now(timezone.utc) < timedelta(minutes=5)
    assert (measured["epoch"].tolist(), measured["metric"].tolist()) == ([1], [0.95])
    assert (len(nothing), "cost" in nothing.columns) == (0, True)
    assert jobs["job.spec.batch_sizes"].tolist() == [[8, 16, 32]]
    assert not [name for name in jobs.columns if not name.startswith("job.")]
    assert summaries["summary.num_running_trials"].tolist() == [1]
    async with AsyncClient(grpc_addr) as client:
        assert (await client.trials(job_id).to_frame()).equals(trials)
