"""A connection pooler between a server and PostgreSQL: it is named as the cause, or keeps sessions and may be used."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import socket
import subprocess
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeAlias

import pytest
from wattwise_server.errors import ConflictError, StartError, StorageUnavailableError
from wattwise_server.store.base import JobList
from wattwise_server.store.postgres.backend import PostgresStore
from wattwise_server.store.postgres.connecting import _SETTINGS, Connector, hang_up
from wattwise_server.store.postgres.open import migrate_postgres

from tests.pooler import Habits, Pooler
from tests.ports import hold_port, port_of
from tests.postgres import PostgresServer, as_user
from tests.server.store.conformance import a_job
from tests.server.store.two_stores import open_postgres_store, two_stores
from tests.waiting import wait_until

PGBOUNCER = shutil.which("pgbouncer", path=f"{os.environ['PATH']}:/usr/sbin")
ROOT = Path(__file__).parents[3]
Refusal: TypeAlias = Callable[[str], Awaitable[str]]
_OURS = ("default_transaction_isolation", "lock_timeout", "search_path")


@pytest.fixture
def refusal(caplog: pytest.LogCaptureFixture) -> Callable[[str], Awaitable[str]]:
    """Why a server does not use a database, and a migration does neither; it is not tried again."""

    async def why(url: str) -> str:
        with pytest.raises(StartError) as caught:
            async with open_postgres_store(url):
                pass
        with pytest.raises(StartError) as as_migration:
            await migrate_postgres(url, "it")
        # Apart from the URL and what the pooler said.
        said = [str(error.value).partition(": ")[2].partition(" (")[0] for error in (caught, as_migration)]
        assert said[0] == said[1]
        assert "database not reached" not in caplog.messages
        return str(caught.value)

    return why


@pytest.mark.parametrize(
    "habits",
    [
        Habits(refuses=_OURS),
        Habits(refuses=_OURS, code="0A000"),
        Habits(refuses=("search_path",), code="42704"),
        Habits(refuses=("application_name",), code="XX000"),
        Habits(refuses=_OURS, code=""),
    ],
)
async def test_pooler_that_refuses_a_setting_is_named_at_once(
    habits: Habits, postgres_server: PostgresServer, postgres_url: str, refusal: Refusal
) -> None:
    """Whatever it says, or if it only closes the connection, a pooler is the cause if it works without settings."""
    with Pooler(postgres_server.port, habits) as pooler:
        error = await refusal(_through(pooler.port, postgres_url))
    assert f"127.0.0.1:{pooler.port}: a connection pooler" in error
    assert "refuses a setting" in error
    assert "itself" in error
    assert "Start it" not in error


@pytest.mark.parametrize("code", ["08P01", "0A000"])
async def test_pooler_that_refuses_the_options_of_the_url_is_named(
    code: str, postgres_server: PostgresServer, postgres_url: str, refusal: Refusal
) -> None:
    """Options that PostgreSQL itself would take are not called wrong."""
    with Pooler(postgres_server.port, Habits(refuses=("options",), code=code)) as pooler:
        error = await refusal(f"{_through(pooler.port, postgres_url)}?options=-c%20work_mem%3D8MB")
    assert "refuses the options of the URL" in error


@pytest.mark.parametrize(
    ("habits", "does"),
    [
        (Habits(keeps="transaction"), "changes the session"),
        (Habits(keeps="transaction", oldest_first=True, sessions=3), "changes the session"),
        (Habits(keeps="transaction", oldest_first=True, sessions=4), "changes the session"),
        (Habits(keeps="transaction", drops=True), "changes the session"),
        (Habits(keeps="statement"), "changes the session"),
        (Habits(passes_notices=False), "does not pass on notices"),
    ],
)
async def test_pooler_that_keeps_no_sessions_is_named(
    habits: Habits,
    does: str,
    postgres_server: PostgresServer,
    postgres_url: str,
    refusal: Refusal,
) -> None:
    """Transaction and statement pooling is recognized without load, and nothing was created."""
    with Pooler(postgres_server.port, habits) as pooler:
        error = await refusal(_through(pooler.port, postgres_url))
    assert does in error
    assert "session pooling" in error
    assert postgres_server.execute("SELECT to_regclass('public.jobs')", postgres_url) == [[""]]


@pytest.mark.parametrize("habits", [Habits(), Habits(drops=True)])
async def test_pooler_that_keeps_sessions_is_used(
    habits: Habits, postgres_server: PostgresServer, postgres_url: str
) -> None:
    """Session pooling works, also where it ignores the settings of a connection; servers hear of each other."""
    with Pooler(postgres_server.port, habits) as pooler:
        url = _through(pooler.port, postgres_url)
        async with two_stores(url) as (first, second):
            with second.subscribe("j") as changes:
                async with first.transaction("j") as tx:
                    tx.save_job(a_job())
                await asyncio.wait_for(changes.wait(), 20)
            assert len(await second.reads.jobs(JobList(), 0, 10)) == 1
            # The server notes each second that it is there.
            async with first.saver.lock, second.reads.pool.acquire() as reading:
                writing = first.saver.connection
                assert writing is not None
                for connection in (writing, reading):
                    assert await connection.fetchval("SHOW search_path") == '"public", pg_temp'
                    assert await connection.fetchval("SHOW statement_timeout") == "0"
                    assert await connection.fetchval("SHOW application_name") == "wattwise"
                # A pooler knows its clients by numbers of its own.
                assert first.saver.processes == [await writing.fetchval("SELECT pg_backend_pid()")]


async def test_old_version_is_named(postgres_server: PostgresServer, postgres_url: str, refusal: Refusal) -> None:
    """A PostgreSQL that is too old is refused at once, also one that does not know a setting of ours."""
    for refuses in ((), ("idle_session_timeout",)):
        with Pooler(postgres_server.port, Habits(version="13.4", refuses=refuses, code="42704")) as pooler:
            assert "it is PostgreSQL 13: 14 or newer" in await refusal(_through(pooler.port, postgres_url))


async def test_slow_database_is_no_pooler(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A database that answers too late is tried again, and is not called a pooler."""
    monkeypatch.setattr("wattwise_server.store.postgres.pooling._ANSWER_SECONDS", 0.2)
    monkeypatch.setattr("wattwise_server.store.postgres.pooling._SESSION", "SELECT pg_backend_pid(), pg_sleep(3600)")
    monkeypatch.setattr("wattwise_server.store.postgres.connecting._START_SECONDS", 0.0)
    with pytest.raises(StartError) as caught:
        await Connector(postgres_url, "it").connect_at_start()
    assert "pooler" not in str(caught.value)
    monkeypatch.undo()
    # The notice is there before an answer, so that no time is too short for it.
    monkeypatch.setattr("wattwise_server.store.postgres.pooling._NOTICE_SECONDS", 0.0)
    await hang_up(await Connector(postgres_url, "it").connect_at_start())


_IGNORED = "ignore_startup_parameters"
_ALL = ", ".join(sorted({*_SETTINGS, "search_path"} - {"application_name"}))


@pytest.mark.skipif(PGBOUNCER is None, reason="needs PgBouncer (Debian: apt-get install pgbouncer)")
@pytest.mark.parametrize(
    ("settings", "does"),
    [
        ({}, "refuses a setting"),
        ({"pool_mode": "transaction"}, "refuses a setting"),
        ({"pool_mode": "transaction", _IGNORED: _ALL}, "changes the session"),
        ({"pool_mode": "transaction", _IGNORED: _ALL, "server_round_robin": "1"}, "changes the session"),
        ({"pool_mode": "statement", _IGNORED: _ALL}, "statement pooling"),
        ({"pool_mode": "session", _IGNORED: _ALL, "default_pool_size": "1"}, "no session for each"),
    ],
)
async def test_pgbouncer_is_named(
    settings: Mapping[str, str],
    does: str,
    postgres_server: PostgresServer,
    postgres_url: str,
    refusal: Refusal,
) -> None:
    """The real one is named at once, whatever its mode."""
    with _pgbouncer(postgres_server, settings) as port:
        assert does in await refusal(_through(port, postgres_url))


@pytest.mark.skipif(PGBOUNCER is None, reason="needs PgBouncer (Debian: apt-get install pgbouncer)")
async def test_pgbouncer_with_session_pooling_is_used(postgres_server: PostgresServer, postgres_url: str) -> None:
    """The setup of docs/operations.md works with the real one."""
    guide = (ROOT / "docs/operations.md").read_text()
    pairs = re.findall(r"^    (pool_mode|default_pool_size|ignore_startup_parameters) = (.*)$", guide, re.MULTILINE)
    assert {name for name, _ in pairs} == {"pool_mode", "default_pool_size", "ignore_startup_parameters"}
    with _pgbouncer(postgres_server, dict(pairs)) as port:
        async with two_stores(_through(port, postgres_url)) as (first, second):
            with second.subscribe("j") as changes:
                async with first.transaction("j") as tx:
                    tx.save_job(a_job())
                await asyncio.wait_for(changes.wait(), 20)
            postgres_server.terminate_backends(f"datname = '{postgres_url.rpartition('/')[2]}'")
            await asyncio.wait_for(_until_deleted(first), 20)


async def _until_deleted(store: PostgresStore) -> None:
    while not await _is_deleted(store):  # noqa: ASYNC110 - it asks the database
        await asyncio.sleep(0.05)


async def _is_deleted(store: PostgresStore) -> bool:
    with suppress(StorageUnavailableError, ConflictError):
        async with store.transaction("j") as tx:
            if tx.job is not None:
                tx.delete_job()
        return True
    return False


def _through(port: int, url: str) -> str:
    return re.sub(r"127\.0\.0\.1:\d+", f"127.0.0.1:{port}", url)


@contextmanager
def _pgbouncer(postgres: PostgresServer, settings: Mapping[str, str]) -> Iterator[int]:
    """The port of a running PgBouncer."""
    assert PGBOUNCER is not None
    with hold_port() as held:
        port, folder = port_of(held), postgres.data.parent
        lines = {
            "listen_addr": "127.0.0.1",
            "listen_port": port,
            "unix_socket_dir": "",
            "auth_type": "any",
            "logfile": folder / f"pgbouncer-{port}.log",
            **settings,
        }
        databases = f"[databases]\n* = host=127.0.0.1 port={postgres.port} user=postgres\n[pgbouncer]\n"
        file = folder / f"pgbouncer-{port}.ini"
        file.write_text(databases + "".join(f"{name} = {value}\n" for name, value in lines.items()))
        with subprocess.Popen(as_user(PGBOUNCER, "-q", str(file)), stderr=subprocess.DEVNULL) as process:
            try:
                wait_until(lambda: _accepts(port))
                yield port
            finally:
                process.kill()


def _accepts(port: int) -> bool:
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False
