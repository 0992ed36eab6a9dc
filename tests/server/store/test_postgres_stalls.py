"""The network between a server and PostgreSQL stalls: calls end within a limit, and nothing is lost or done twice."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import NamedTuple

import pytest
from wattwise_server.domain import ListedJob
from wattwise_server.errors import StorageUnavailableError
from wattwise_server.store.base import JobList
from wattwise_server.store.postgres.backend import PostgresStore
from wattwise_server.usecases.retries import retried

from tests.postgres import PostgresServer
from tests.server.store.conformance import a_job, with_trials
from tests.server.store.two_stores import open_postgres_store
from tests.stalling_proxy import StallingProxy

_LIMITS = {
    "saving._STALL_SECONDS": 0.3,
    "saving._AWAY_SECONDS": 0.5,
    "saving._LONGEST_PAUSE_SECONDS": 0.1,
    "connecting._CONNECT_SECONDS": 0.3,
    "open._READ_SECONDS": 0.3,
}


class Path(NamedTuple):
    """A store and what lies between it and its database."""

    store: PostgresStore
    proxy: StallingProxy
    url: str
    limits: pytest.MonkeyPatch

    def recover(self) -> None:
        """Ends a stall; the usual limits hold again."""
        self.limits.undo()
        self.proxy.flow()


@pytest.fixture
async def path(postgres_server: PostgresServer, postgres_url: str) -> AsyncIterator[Path]:
    """A store behind a proxy, with short limits and the job `j`."""
    with StallingProxy(postgres_server.port) as proxy, pytest.MonkeyPatch.context() as limits:
        behind = postgres_url.replace(postgres_server.host, f"127.0.0.1:{proxy.port}")
        async with open_postgres_store(behind) as store:
            async with store.transaction("j") as tx:
                tx.save_job(a_job())
            # Only now: to open it may take longer.
            for name, seconds in _LIMITS.items():
                limits.setattr(f"wattwise_server.store.postgres.{name}", seconds)
            await store.reads.pool.expire_connections()
            yield Path(store, proxy, postgres_url, limits)
            limits.undo()
            proxy.flow()


async def observe(store: PostgresStore) -> None:
    """Adds one to the number of observations."""
    async with store.transaction("j") as tx:
        assert tx.job is not None
        tx.save_job(replace(tx.job, num_observations=tx.job.num_observations + 1))


async def readable(store: PostgresStore) -> None:
    """Reads, as often as it takes."""
    for _ in range(100):
        with suppress(StorageUnavailableError):
            await store.reads.jobs(JobList(), 0, 10)
            return


async def until_saved(store: PostgresStore) -> None:
    """Saves something else, as often as it takes."""

    async def save() -> bool:
        try:
            async with store.transaction("other") as tx:
                tx.save_job(tx.job or a_job("other"))
        except StorageUnavailableError:
            return False
        return True

    async def repeat() -> None:
        while not await save():  # noqa: ASYNC110 - it asks the database
            await asyncio.sleep(0.02)

    await asyncio.wait_for(repeat(), 20)


@pytest.mark.parametrize("direction", ["both", "to_target", "to_client"])
async def test_stalled_commit_ends_and_is_not_repeated(path: Path, direction: str) -> None:
    """A commit that gets no answer ends in an error after the limit; what arrives later happens once, or never."""
    store, proxy, url = path.store, path.proxy, path.url
    proxy.stall(to_target=direction != "to_client", to_client=direction != "to_target")
    with pytest.raises(StorageUnavailableError) as doubtful:
        await asyncio.wait_for(observe(store), 20)
    assert "nothing was saved" not in str(doubtful.value)
    with pytest.raises(StorageUnavailableError):
        await asyncio.wait_for(observe(store), 20)
    path.recover()
    await until_saved(store)
    await retried(observe)(store)
    async with open_postgres_store(url) as other:
        found = await other.reads.job("j")
    assert found is not None
    assert found.job.num_observations in {1, 2}
    assert found.version == 1 + found.job.num_observations


async def test_short_stall_is_only_a_delay(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A commit whose answer comes before the limit succeeds, and the connection stays."""
    monkeypatch.setattr("wattwise_server.store.postgres.saving._STALL_SECONDS", 20.0)
    store, proxy = path.store, path.proxy
    connection = store.saver.connection
    proxy.stall()
    saving = asyncio.create_task(observe(store))
    done, _pending = await asyncio.wait({saving}, timeout=0.1)
    assert not done
    proxy.flow()
    await asyncio.wait_for(saving, 20)
    assert store.saver.connection is connection


async def test_stalled_read_ends(path: Path) -> None:
    """A list and a job that is not cached end in an error after the limit, and can be read once answers come."""
    store, proxy = path.store, path.proxy
    store.distrust()
    # On connections with short limits: one that is open, and one that cannot be opened.
    await readable(store)
    proxy.stall()
    with pytest.raises(StorageUnavailableError):
        await asyncio.wait_for(store.reads.jobs(JobList(), 0, 10), 20)
    with pytest.raises(StorageUnavailableError):
        async with store.transaction("j"):
            pass
    path.recover()
    await until_saved(store)
    assert len(await store.reads.jobs(JobList(), 0, 10)) == 2
    async with store.transaction("j") as tx:
        assert tx.job == a_job()


async def test_reads_do_not_queue_up_behind_stalled_ones(path: Path) -> None:
    """A read that gets no connection ends in an error after a limit of its own, whatever those before it do."""
    store, proxy = path.store, path.proxy
    path.limits.setattr("wattwise_server.store.postgres.open._READ_SECONDS", 3600.0)
    path.limits.setattr("wattwise_server.store.postgres.reads._ACQUIRE_SECONDS", 0.3)
    await store.reads.pool.expire_connections()
    # As many at once as open all connections.
    await asyncio.gather(*(store.reads.jobs(JobList(), 0, 10) for _ in range(64)), return_exceptions=True)
    connections = store.reads.pool.get_size()
    proxy.stall()
    reads = {asyncio.create_task(store.reads.jobs(JobList(), 0, 10)) for _ in range(64)}

    async def all_but_the_stalled() -> set[asyncio.Task[Sequence[ListedJob]]]:
        pending = reads
        while len(pending) > connections:
            _done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
        return pending

    stalled = await asyncio.wait_for(all_but_the_stalled(), 20)
    for read in reads - stalled:
        assert isinstance(read.exception(), StorageUnavailableError)
    path.recover()
    assert [len(jobs) for jobs in await asyncio.gather(*stalled)] == [1] * connections


async def test_cancelled_read_logs_no_error(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A caller that was cancelled leaves no error behind that looks like a defect."""
    store, proxy = path.store, path.proxy
    await readable(store)
    proxy.stall()
    reading = asyncio.create_task(store.reads.jobs(JobList(), 0, 10))
    await asyncio.wait({reading}, timeout=0.05)
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading

    async def over() -> None:
        while any("_fetch" in str(task.get_coro()) for task in asyncio.all_tasks()):  # noqa: ASYNC110 - nobody is told of it
            await asyncio.sleep(0.01)

    await asyncio.wait_for(over(), 20)
    gc.collect()
    assert not [record for record in caplog.records if record.name == "asyncio"]


async def test_stalled_notices_are_made_up_for(path: Path) -> None:
    """A change that another server makes during a stall wakes the subscriptions after it."""
    store, proxy, url = path.store, path.proxy, path.url
    async with open_postgres_store(url) as other:
        with store.subscribe("j") as changes:
            proxy.stall()
            async with other.transaction("j") as tx:
                tx.save_job(with_trials(a_job(), 1))
            proxy.flow()
            await asyncio.wait_for(changes.wait(), 20)


async def test_store_closes_during_a_stall(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that is stopped while its database does not answer ends all the same."""
    path.limits.undo()
    monkeypatch.setattr("wattwise_server.store.postgres.backend._FINISH_SECONDS", 0.3)
    monkeypatch.setattr("wattwise_server.store.postgres.saving._STALL_SECONDS", 3600.0)
    # Nothing else is on the writing connection.
    monkeypatch.setattr("wattwise_server.store.postgres.open._NOTE_SECONDS", 3600.0)
    behind = path.url.replace(path.url.partition("@")[2].partition("/")[0], f"127.0.0.1:{path.proxy.port}")

    async def open_and_close() -> None:
        async with open_postgres_store(behind) as closing:
            await observe(closing)
            path.proxy.stall()
            saving = asyncio.create_task(observe(closing))
            while not closing.saver.lock.locked():  # noqa: ASYNC110 - until the commit is on its way
                await asyncio.sleep(0)
        with pytest.raises(StorageUnavailableError):
            await saving

    await asyncio.wait_for(open_and_close(), 20)
