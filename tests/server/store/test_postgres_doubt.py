"""Commits in doubt: the connection is lost while nobody knows whether the group was saved."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace

import pytest
from wattwise_server.errors import StorageUnavailableError
from wattwise_server.events import JobPaused
from wattwise_server.store.postgres.backend import PostgresStore

from tests.postgres import PostgresServer
from tests.server.site import Published
from tests.server.store.conformance import a_job
from tests.server.store.two_stores import open_postgres_store
from tests.stalling_proxy import StallingProxy

_WAITS = "SELECT count(*) > 0 FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND query LIKE '%pg_temp.save(%'"
"""Whether a commit waits for a standby."""

_HOLD = """
    CREATE SEQUENCE tickets;
    CREATE TABLE released (ticket bigint);
    CREATE FUNCTION hold() RETURNS trigger LANGUAGE plpgsql AS $$
    DECLARE
        mine bigint;
    BEGIN
        IF current_query() LIKE '%pg_temp.save(%' THEN
            mine := nextval('tickets');
            WHILE NOT EXISTS (SELECT FROM released WHERE ticket >= mine) LOOP
                PERFORM pg_sleep(0.01);
            END LOOP;
        END IF;
        RETURN NULL;
    END $$;
    CREATE TRIGGER hold {} EXECUTE FUNCTION hold()
"""
"""Lets commits wait until they are released, in the order in which they come."""

_WAITS_FOR_ANOTHER = "SELECT count(*) > 0 FROM pg_locks WHERE locktype = 'transactionid' AND NOT granted"
_HELD = """
    SELECT count(*) = {} FROM pg_stat_activity
    WHERE datname = current_database() AND query LIKE '%pg_temp.save(%' AND wait_event = 'PgSleep'
"""


@pytest.fixture(scope="module")
def postgres() -> Iterator[PostgresServer]:
    """A running PostgreSQL whose settings these tests change."""
    with PostgresServer.running() as running:
        yield running


@pytest.fixture
def proxy(postgres: PostgresServer) -> Iterator[StallingProxy]:
    """A proxy in front of it."""
    with StallingProxy(postgres.port) as between:
        yield between


@pytest.fixture
async def store(
    postgres: PostgresServer, proxy: StallingProxy, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[PostgresStore]:
    """A store behind the proxy, with the job `j`, which writes nothing by itself."""
    monkeypatch.setattr("wattwise_server.store.postgres.open._NOTE_SECONDS", 3600.0)
    database = postgres.create_database().rpartition("/")[2]
    async with open_postgres_store(f"postgresql://postgres@127.0.0.1:{proxy.port}/{database}") as opened:
        async with opened.transaction("j") as tx:
            tx.save_job(a_job())
        yield opened


async def observe(store: PostgresStore) -> None:
    """Adds one to the number of observations."""
    async with store.transaction("j") as tx:
        assert tx.job is not None
        tx.save_job(replace(tx.job, num_observations=tx.job.num_observations + 1))


async def state(store: PostgresStore) -> tuple[int, int]:
    """The job's version and number of observations in the database."""
    found = await store.reads.job("j")
    assert found is not None
    return found.version, found.job.num_observations


async def until(postgres: PostgresServer, sql: str, database: str = "postgres") -> None:
    """Returns once a query answers true."""

    async def look() -> None:
        while await asyncio.to_thread(postgres.execute, sql, database) != [["t"]]:
            pass

    await asyncio.wait_for(look(), 20)


async def test_commit_that_happened_succeeds_once(
    postgres: PostgresServer, proxy: StallingProxy, store: PostgresStore, caplog: pytest.LogCaptureFixture
) -> None:
    """The connection is cut before the answer: the caller sees success, once, and nothing is repeated."""
    caplog.set_level(logging.INFO)
    store.observer = published = Published()

    async def write() -> None:
        async with store.transaction("j") as tx:
            assert tx.job is not None
            tx.record(replace(tx.job, num_observations=7), JobPaused(tx.job.spec))

    postgres.configure(synchronous_standby_names="nobody")
    try:
        writing = asyncio.create_task(write())
        await until(postgres, _WAITS)
        proxy.cut()
    finally:
        postgres.configure(synchronous_standby_names="")
    await asyncio.wait_for(writing, 30)
    assert published.kinds == [JobPaused]
    assert await state(store) == (2, 7)
    await observe(store)
    assert await state(store) == (3, 8)
    assert [record.message for record in caplog.records].count("database lost") == 1
    assert "commit failed" not in caplog.messages


async def test_commit_that_never_arrived_is_repeated(proxy: StallingProxy, store: PostgresStore) -> None:
    """The connection is cut before the group has arrived: the next connection commits it, once."""
    proxy.stall(to_client=False)
    writing = asyncio.create_task(observe(store))
    while store.saver.lock.locked() is False:  # noqa: ASYNC110 - until the group is on its way
        await asyncio.sleep(0)
    proxy.cut()
    proxy.flow()
    await asyncio.wait_for(writing, 30)
    assert await state(store) == (2, 1)
    await observe(store)
    assert await state(store) == (3, 2)


async def test_unknown_outcome_is_not_called_unsaved(
    postgres: PostgresServer, proxy: StallingProxy, store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the database stays away, a caller whose group was committed does not learn that nothing was saved."""
    monkeypatch.setattr("wattwise_server.store.postgres.saving._AWAY_SECONDS", 0.2)
    proxy.stall(to_target=False)
    writing = asyncio.create_task(observe(store))
    database = store.saver.connector.shown.rpartition("/")[2]
    await until(postgres, "SELECT num_observations = 1 FROM jobs", database)
    proxy.refuse()
    proxy.cut()
    with pytest.raises(StorageUnavailableError) as caught:
        await asyncio.wait_for(writing, 20)
    assert "nothing was saved" not in str(caught.value)
    proxy.flow()
    proxy.accept()
    await asyncio.wait_for(store.saver.connected.wait(), 20)
    await observe(store)
    assert await state(store) == (3, 2)


@pytest.mark.parametrize("table", ["job_versions", "jobs"])
async def test_lost_call_that_arrives_late_succeeds_once(
    postgres: PostgresServer, proxy: StallingProxy, store: PostgresStore, table: str
) -> None:
    """PostgreSQL goes on with a call whose connection was cut, after it was asked: the caller sees success, once."""
    database = store.saver.connector.shown.rpartition("/")[2]
    event = "BEFORE UPDATE ON job_versions" if table == "job_versions" else "AFTER INSERT ON jobs"
    postgres.execute(_HOLD.format(event), database)
    store.observer = published = Published()

    async def write() -> None:
        async with store.transaction("j" if table == "job_versions" else "new") as tx:
            job = replace(tx.job, num_observations=7) if tx.job else a_job("new")
            tx.record(job, JobPaused(job.spec))

    writing = asyncio.create_task(write())
    await until(postgres, _HELD.format(1), database)
    proxy.cut()
    # Sent again; a job that is created twice waits for the first.
    await until(postgres, _HELD.format(2) if table == "job_versions" else _WAITS_FOR_ANOTHER, database)
    postgres.execute("INSERT INTO released VALUES (1)", database)
    if table == "job_versions":
        await until(postgres, "SELECT version = 2 FROM job_versions", database)
        postgres.execute("INSERT INTO released VALUES (2)", database)
    await asyncio.wait_for(writing, 30)
    assert published.kinds == [JobPaused]


async def test_error_while_a_doubt_is_settled_is_not_called_unsaved(
    postgres: PostgresServer, proxy: StallingProxy, store: PostgresStore
) -> None:
    """If PostgreSQL refuses to say what became of a group, its caller does not learn that nothing was saved."""
    database = store.saver.connector.shown.rpartition("/")[2]
    proxy.stall(to_target=False)
    writing = asyncio.create_task(observe(store))
    await until(postgres, "SELECT num_observations = 1 FROM jobs", database)
    postgres.execute(
        "DROP FUNCTION settle_1;"
        "CREATE FUNCTION settle_1(bigint, bigint, bigint[], bigint[]) RETURNS boolean LANGUAGE plpgsql AS "
        "$$ BEGIN RAISE lock_not_available; END $$",
        database,
    )
    proxy.cut()
    proxy.flow()
    with pytest.raises(StorageUnavailableError) as caught:
        await asyncio.wait_for(writing, 20)
    assert "nothing was saved" not in str(caught.value)
    assert await state(store) == (2, 1)


async def test_group_in_doubt_is_not_sent_again(
    postgres: PostgresServer, proxy: StallingProxy, store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If it is unknown whether a group of several jobs was saved, no caller learns that nothing was."""
    monkeypatch.setattr("wattwise_server.store.postgres.saving._AWAY_SECONDS", 0.2)
    for number in range(3):
        async with store.transaction(f"j{number}") as tx:
            tx.save_job(a_job(f"j{number}"))

    async def write(number: int) -> None:
        async with store.transaction(f"j{number}") as tx:
            assert tx.job is not None
            tx.save_job(replace(tx.job, num_observations=7))

    proxy.stall(to_target=False)
    writing = [asyncio.create_task(write(number)) for number in range(3)]
    database = store.saver.connector.shown.rpartition("/")[2]
    await until(postgres, "SELECT count(*) = 3 FROM jobs WHERE num_observations = 7", database)
    proxy.refuse()
    proxy.cut()
    outcomes = await asyncio.wait_for(asyncio.gather(*writing, return_exceptions=True), 20)
    assert [type(outcome) for outcome in outcomes] == [StorageUnavailableError] * 3
    assert not any("nothing was saved" in str(outcome) for outcome in outcomes)
    proxy.flow()
    proxy.accept()
