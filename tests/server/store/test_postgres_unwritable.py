"""A PostgreSQL that answers but cannot be written, while a server runs: callers learn why, and may retry."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import asyncpg
import grpc
import pytest
from wattwise import v1
from wattwise_server.errors import StorageUnavailableError
from wattwise_server.store.base import JobList
from wattwise_server.store.postgres.backend import PostgresStore
from wattwise_server.store.postgres.failures import explain, summary

from tests.jobs import job_spec
from tests.live_server import LiveServer
from tests.postgres import PostgresServer
from tests.refusals import refused
from tests.server.store.conformance import a_job
from tests.server.store.two_stores import open_postgres_store
from tests.stalling_proxy import StallingProxy


@pytest.fixture
def postgres(monkeypatch: pytest.MonkeyPatch) -> Iterator[PostgresServer]:
    """A PostgreSQL of the test; servers do not wait long for another connection."""
    monkeypatch.setattr("wattwise_server.store.postgres.saving._AWAY_SECONDS", 0.5)
    monkeypatch.setattr("wattwise_server.store.postgres.saving._LONGEST_PAUSE_SECONDS", 0.05)
    with PostgresServer.running() as running:
        yield running


async def observe(store: PostgresStore) -> None:
    """Creates the job `j`, or adds one to its number of observations."""
    async with store.transaction("j") as tx:
        tx.save_job(replace(tx.job, num_observations=tx.job.num_observations + 1) if tx.job else a_job())


async def refusal(store: PostgresStore) -> str:
    """Why a write is refused."""
    with pytest.raises(StorageUnavailableError) as caught:
        await asyncio.wait_for(observe(store), 20)
    assert caught.value.retryable
    return str(caught.value)


async def until_written(store: PostgresStore) -> None:
    """Writes, as soon as the server is connected."""
    await asyncio.wait_for(store.saver.connected.wait(), 20)
    await observe(store)


async def test_database_that_becomes_read_only(postgres: PostgresServer, caplog: pytest.LogCaptureFixture) -> None:
    """Writes are refused as read-only and nothing of them is saved; reads go on; the log says what to turn off."""
    async with open_postgres_store(postgres.create_database()) as store:
        await observe(store)
        await asyncio.to_thread(postgres.configure, default_transaction_read_only="on")
        for _ in range(3):
            error = await refusal(store)
            assert "it is read-only" in error
            assert "nothing was saved" in error
        await store.reads.pool.expire_connections()
        assert len(await store.reads.jobs(JobList(), 0, 10)) == 1
        await asyncio.to_thread(postgres.configure, default_transaction_read_only="off")
        await until_written(store)
        found = await store.reads.job("j")
        assert found is not None
        assert found.job.num_observations == 1
    (cause,) = [vars(record)["fields"]["cause"] for record in caplog.records if record.msg == "commit failed"]
    assert "default_transaction_read_only" in cause
    assert not [record for record in caplog.records if record.exc_info]


@pytest.mark.thorough
async def test_primary_is_replaced_by_a_standby(postgres: PostgresServer, caplog: pytest.LogCaptureFixture) -> None:
    """A standby at the same address is called one, until it is promoted."""
    url = postgres.create_database()
    postgres.execute("SELECT pg_switch_wal()")
    with postgres.standby() as standby, StallingProxy(postgres.port) as proxy:
        async with open_postgres_store(url.replace(postgres.host, f"127.0.0.1:{proxy.port}")) as store:
            await observe(store)
            proxy.refuse()
            proxy.target = standby.port
            proxy.cut()
            # In doubt, since the connection was lost.
            await refusal(store)
            proxy.accept()
            await asyncio.wait_for(_says(store, "it is a standby"), 20)
            with pytest.raises(StorageUnavailableError, match="it is a standby"):
                await _read_anew(store)
            await asyncio.to_thread(standby.promote)
            await until_written(store)
            assert len(await store.reads.jobs(JobList(), 0, 10)) == 1
    assert not [record for record in caplog.records if record.exc_info]


async def test_canceled_commit(postgres: PostgresServer) -> None:
    """A commit that an administrator cancels saved nothing, and the caller learns that it was canceled."""
    url = postgres.create_database()
    async with open_postgres_store(url) as store:
        await observe(store)
        blocker = await asyncpg.connect(url)
        await blocker.execute("BEGIN; LOCK TABLE job_versions IN EXCLUSIVE MODE")
        writing = asyncio.create_task(refusal(store))
        canceled = "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
        while not await asyncio.to_thread(postgres.execute, canceled):
            pass
        error = await writing
        assert "canceled" in error
        assert "nothing was saved" in error
        await blocker.close()
        await observe(store)


def test_callers_learn_that_the_database_is_read_only(tmp_path: Path) -> None:
    """A call gets UNAVAILABLE with its reason, a pause and the cause, and no host or table."""
    with PostgresServer.running() as postgres, LiveServer(tmp_path, postgres.create_database()) as server:
        server.start()
        server.trainer.RegisterJob(v1.RegisterJobRequest(job=job_spec()))
        postgres.configure(default_transaction_read_only="on")
        with refused() as refusal:
            server.trainer.RegisterJob(v1.RegisterJobRequest(job=job_spec(job_id="test-another")))
        assert refusal.code is grpc.StatusCode.UNAVAILABLE
        assert refusal.reason == "ERROR_REASON_STORAGE_UNAVAILABLE"
        assert refusal.metadata["retryable"] == "true"
        assert refusal.retry_seconds
        assert "it is read-only" in refusal.message
        assert "127.0.0.1" not in refusal.message
        assert "Traceback" not in server.log.read_text()


@pytest.mark.parametrize(
    ("code", "said", "remedy"),
    [
        ("25006", "read-only", "default_transaction_read_only"),
        ("25P03", "timeout", ""),
        ("25P04", "timeout", ""),
        ("53100", "disk is full", "free disk space"),
        ("53200", "out of memory", ""),
        ("53300", "no connection left", "max_connections"),
        ("53400", "SQLSTATE 53400", ""),
        ("55P03", "lock", ""),
        ("57014", "canceled", "log"),
        ("57P05", "timeout", ""),
        ("42P01", "SQLSTATE 42P01", ""),
    ],
)
def test_error_is_called_what_it_is(code: str, said: str, remedy: str) -> None:
    """Callers get the kind of an error, operators its text in one line with a remedy."""
    error = asyncpg.PostgresError.new({"C": code, "M": "table t of host h", "D": "more", "H": "to do"})
    assert said in summary(error)
    assert "table t" not in summary(error)
    assert explain(error).startswith(f"table t of host h DETAIL: more HINT: to do (SQLSTATE {code})")
    assert remedy in explain(error)
    assert bool(remedy) == (": " in explain(error).partition("SQLSTATE")[2])


async def _says(store: PostgresStore, what: str) -> None:
    while what not in await refusal(store):  # noqa: ASYNC110 - it asks the database
        await asyncio.sleep(0.02)


async def _read_anew(store: PostgresStore) -> None:
    await store.reads.pool.expire_connections()
    await store.reads.jobs(JobList(), 0, 10)
