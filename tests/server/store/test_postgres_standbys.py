"""Commits that wait for a standby: none is cancelled, and none is followed by another."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace

import pytest
from wattwise_server.errors import StorageUnavailableError
from wattwise_server.store.base import JobList
from wattwise_server.store.postgres.backend import PostgresStore
from wattwise_server.usecases.retries import retried

from tests.postgres import PostgresServer
from tests.server.store.conformance import a_job
from tests.server.store.two_stores import open_postgres_store

pytestmark = pytest.mark.thorough

_WAITING = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
_CONNECTIONS = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'wattwise'"


@pytest.fixture
def postgres(monkeypatch: pytest.MonkeyPatch) -> Iterator[PostgresServer]:
    """A PostgreSQL whose standbys go away; servers lose patience soon."""
    monkeypatch.setattr("wattwise_server.store.postgres.saving._STALL_SECONDS", 0.5)
    monkeypatch.setattr("wattwise_server.store.postgres.saving._AWAY_SECONDS", 0.5)
    monkeypatch.setattr("wattwise_server.store.postgres.saving._LONGEST_PAUSE_SECONDS", 0.05)
    with PostgresServer.running() as running:
        yield running


@retried
async def observe(store: PostgresStore) -> None:
    """Creates the job `j`, or adds one to its number of observations."""
    async with store.transaction("j") as tx:
        tx.save_job(replace(tx.job, num_observations=tx.job.num_observations + 1) if tx.job else a_job())


async def test_outage_of_the_standbys_takes_no_connections(
    postgres: PostgresServer, caplog: pytest.LogCaptureFixture
) -> None:
    """While one commit waits, calls that write are refused, and nothing more waits in PostgreSQL."""
    url = postgres.create_database()
    async with open_postgres_store(url) as store:
        await observe(store)
        postgres.configure(synchronous_standby_names="nobody")
        for _ in range(50):
            with pytest.raises(StorageUnavailableError):
                await asyncio.wait_for(observe(store), 20)
            # Reads are answered, and give the connections time.
            assert len(await store.reads.jobs(JobList(), 0, 10)) == 1
        await asyncio.wait_for(_logged(caplog, "commit waits"), 20)
        for _ in range(50):
            with pytest.raises(StorageUnavailableError, match="away"):
                await asyncio.wait_for(observe(store), 20)
            await store.reads.jobs(JobList(), 0, 10)
        assert await asyncio.to_thread(postgres.execute, _WAITING) == [["1"]]
        ((connections,),) = await asyncio.to_thread(postgres.execute, _CONNECTIONS)
        assert int(connections) <= 11
        await asyncio.to_thread(postgres.configure, synchronous_standby_names="")
        await asyncio.wait_for(store.saver.connected.wait(), 20)
        await observe(store)
        found = await store.reads.job("j")
        assert found is not None
        # The first of the refused ones, which had arrived, and this one.
        assert found.job.num_observations == 2
    assert caplog.messages.count("commit waits") == 1


async def test_server_that_stops_cancels_no_commit(postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A commit that waits for a standby still does when its server has gone: on one host alone it must not be seen."""
    monkeypatch.setattr("wattwise_server.store.postgres.saving._STALL_SECONDS", 3600.0)
    monkeypatch.setattr("wattwise_server.store.postgres.backend._FINISH_SECONDS", 0.3)
    url = postgres.create_database()

    async def stop_in_a_commit() -> asyncio.Task[None]:
        async with open_postgres_store(url) as store:
            await observe(store)
            postgres.configure(synchronous_standby_names="nobody")
            writing = asyncio.create_task(observe(store))
            while await asyncio.to_thread(postgres.execute, _WAITING) != [["1"]]:
                pass
        return writing

    writing = await asyncio.wait_for(stop_in_a_commit(), 30)
    with pytest.raises(StorageUnavailableError) as caught:
        await writing
    assert "nothing was saved" not in str(caught.value)
    database = url.rpartition("/")[2]
    assert postgres.execute(_WAITING) == [["1"]]
    assert postgres.execute("SELECT num_observations FROM jobs", database) == [["0"]]
    postgres.configure(synchronous_standby_names="")


async def test_host_that_may_lose_commits_is_not_written_to(
    postgres: PostgresServer, caplog: pytest.LogCaptureFixture
) -> None:
    """With fsync=off a crash may lose what was acknowledged: also a server that runs writes nothing there."""
    url = postgres.create_database()
    async with open_postgres_store(url) as store:
        await observe(store)
        postgres.configure(fsync="off")
        postgres.terminate_backends()
        while not store.saver.why:
            with pytest.raises(StorageUnavailableError):
                await asyncio.wait_for(observe(store), 20)
        await asyncio.wait_for(_refused(store), 20)
        with pytest.raises(StorageUnavailableError):
            await observe(store)
        postgres.configure(fsync="on")
        await asyncio.wait_for(store.saver.connected.wait(), 20)
        await observe(store)
    assert "connecting failed" not in caplog.messages


async def _logged(caplog: pytest.LogCaptureFixture, event: str) -> None:
    while event not in caplog.messages:  # noqa: ASYNC110 - the log tells nobody
        await asyncio.sleep(0.01)


async def _refused(store: PostgresStore) -> None:
    while "fsync=off" not in store.saver.why:  # noqa: ASYNC110 - the store tells nobody
        await asyncio.sleep(0.01)
