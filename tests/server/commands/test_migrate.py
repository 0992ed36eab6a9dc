"""`wattwise migrate`: what it says and does on both databases."""

from __future__ import annotations

import asyncio
import sqlite3
import sys
from argparse import Namespace
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, TypeVar

import asyncpg
import pytest
from wattwise_server.commands.migrate import COMMAND, described
from wattwise_server.store.base import Migrated
from wattwise_server.store.postgres.migrate import Migration
from wattwise_server.store.postgres.migrate import migrations as postgres_migrations
from wattwise_server.store.postgres.open import migrate_postgres
from wattwise_server.store.sqlite.migrate import migrations, schema_version

from tests.forking import run
from tests.live_server import LiveServer
from tests.postgres import PostgresServer

WATTWISE = str(Path(sys.executable).with_name("wattwise"))
NEWEST = max(migrations())

_T = TypeVar("_T")


def migrated(url: str, status: int = 0) -> str:
    """Runs the command; returns its output, or its error if it is to fail."""
    done = run("migrate", "--database", url)
    assert done.returncode == status, done
    return done.stderr if status else done.stdout


def version_of(path: Path) -> int:
    """The schema version of a file."""
    with closing(sqlite3.connect(path)) as connection:
        return schema_version(connection)


def test_file_is_created_once(tmp_path: Path) -> None:
    """A new file is created; the second time nothing is to be done, and it says so."""
    url, path = f"sqlite:///{tmp_path}/w.db", tmp_path / "w.db"
    assert migrated(url) == f"{url} was created with schema version {NEWEST}\n"
    assert version_of(path) == NEWEST
    assert migrated(url) == f"{url} has schema version {NEWEST} already\n"


def test_older_file_is_migrated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A program with a later migration says from which version to which."""
    url, path = f"sqlite:///{tmp_path}/w.db", tmp_path / "w.db"
    migrated(url)
    later = migrations() | {NEWEST + 1: "ALTER TABLE jobs ADD COLUMN extra INTEGER;"}
    for module in ("migrate", "open"):
        monkeypatch.setattr(f"wattwise_server.store.sqlite.{module}.migrations", lambda: later)
    assert COMMAND.run(Namespace(database=url)) == 0
    assert capsys.readouterr().out == f"{url} was migrated from schema version {NEWEST} to {NEWEST + 1}\n"
    assert version_of(path) == NEWEST + 1


def test_file_in_use_is_left_alone(server: LiveServer) -> None:
    """A file that a server uses is refused."""
    assert "another server uses" in migrated(f"sqlite:///{server.database}", status=1)


def test_file_of_another_program_is_left_alone(tmp_path: Path) -> None:
    """A file with other tables is refused and unchanged."""
    path = tmp_path / "other.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE jobs (n int)")
    before = path.read_bytes()
    assert "not a Wattwise database" in migrated(f"sqlite:///{path}", status=1)
    assert path.read_bytes() == before


async def at_once(url: str, migrating: Callable[[], Coroutine[Any, Any, _T]]) -> list[_T]:
    """Migrates five times at once: all have read the old version before the first one begins."""
    connection = await asyncpg.connect(url)
    await connection.execute("SELECT pg_advisory_lock(8677, 0)")
    tasks = [asyncio.create_task(migrating()) for _ in range(5)]
    waiting = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
    while await connection.fetchval(waiting) < 5 and not any(each.done() for each in tasks):  # noqa: ASYNC110 - it asks
        await asyncio.sleep(0.05)
    await connection.close()
    return [await task for task in tasks]


async def test_simultaneous_commands_say_which_one_created_it(postgres_url: str) -> None:
    """One of five commands creates the tables, and each of the others says that another one has; none fails."""
    outputs = await at_once(postgres_url, lambda: asyncio.to_thread(migrated, postgres_url))
    newest = max(postgres_migrations())
    waited = f"has schema version {newest} already: another process created it just now\n"
    created = f"was created with schema version {newest}\n"
    assert sorted(output.removeprefix(f"{postgres_url} ") for output in outputs) == [*[waited] * 4, created]


async def test_simultaneous_migrations_happen_once(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One of five processes with a later migration makes it, and the others learn that another one has."""
    await migrate_postgres(postgres_url, "it")
    known = postgres_migrations()
    newest = max(known)
    later = known | {newest + 1: Migration("CREATE TABLE extra (n int)", newest)}
    monkeypatch.setattr("wattwise_server.store.postgres.migrate.migrations", lambda: later)
    done = sorted(await at_once(postgres_url, lambda: migrate_postgres(postgres_url, "it")))
    assert done == [Migrated(newest, newest + 1), *[Migrated(newest, newest + 1, by_another=True)] * 4]
    assert described(done[1]).endswith(f": another process migrated it from {newest} just now")


@pytest.mark.thorough
def test_simultaneous_servers_share_a_new_database(
    tmp_path: Path, postgres_server: PostgresServer, postgres_url: str
) -> None:
    """Five servers that start at once on an empty database all serve."""
    with ExitStack() as stack:
        folders = [tmp_path / str(number) for number in range(5)]
        for folder in folders:
            folder.mkdir()
        servers = [stack.enter_context(LiveServer(folder, postgres_url)) for folder in folders]
        for server in servers:
            # With variables it gets a new process; forked ones start one after the other.
            server.environment = {"PYTHONUNBUFFERED": "1"}
        with ThreadPoolExecutor(5) as pool:
            list(pool.map(LiveServer.start, servers))
        assert all("Traceback" not in server.log.read_text() for server in servers)
        assert postgres_server.execute("SELECT count(*) FROM servers", postgres_url) == [["5"]]


def test_postgres_is_created_once_and_free_at_once(postgres_server: PostgresServer, postgres_url: str) -> None:
    """A new schema is created; to create it is no use of the database that a copy would have to wait for."""
    newest = max(postgres_migrations())
    assert migrated(postgres_url).endswith(f" was created with schema version {newest}\n")
    assert postgres_server.execute("SELECT count(*) FROM servers", postgres_url) == [["0"]]
    assert migrated(postgres_url).endswith(f" has schema version {newest} already\n")
    assert "names no database" in migrated("postgresql://nobody@127.0.0.1", status=1)
