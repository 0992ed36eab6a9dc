"""`wattwise migrate`: what it says and does on both databases."""

from __future__ import annotations

import asyncio
import sqlite3
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path

import asyncpg
import pytest
from wattwise_server.store.postgres.migrate import migrate as migrate_postgres
from wattwise_server.store.postgres.migrate import migrations as postgres_migrations
from wattwise_server.store.sqlite.migrate import migrate, migrations, schema_version

from tests.live_server import LiveServer
from tests.postgres import PostgresServer

WATTWISE = str(Path(sys.executable).with_name("wattwise"))
NEWEST = max(migrations())


def migrated(url: str, status: int = 0) -> str:
    """Runs the command; returns its output, or its error if it is to fail."""
    command = [WATTWISE, "migrate", "--database", url]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
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


def test_older_file_is_migrated(tmp_path: Path) -> None:
    """It says from which version to which."""
    url, path = f"sqlite:///{tmp_path}/w.db", tmp_path / "w.db"
    with closing(sqlite3.connect(path)) as connection:
        migrate(connection, "w.db", {version: sql for version, sql in migrations().items() if version < 8})
    assert migrated(url) == f"{url} was migrated from schema version 7 to {NEWEST}\n"
    assert version_of(path) == NEWEST


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


@pytest.mark.parametrize("before", [0, 1])
async def test_simultaneous_migrations_say_which_one_did_it(before: int, postgres_url: str) -> None:
    """One of five commands migrates, and each of the others says that another one has; none fails."""
    steps = postgres_migrations()
    newest = max(steps)
    connection = await asyncpg.connect(postgres_url)
    if before:
        await migrate_postgres(connection, "it", {version: steps[version] for version in steps if version <= before})
    # All five have read the old version before the first one begins.
    await connection.execute("SELECT pg_advisory_lock(8677, 0)")
    commands = [asyncio.create_task(asyncio.to_thread(migrated, postgres_url)) for _ in range(5)]
    waiting = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
    while await connection.fetchval(waiting) < 5 and not any(each.done() for each in commands):  # noqa: ASYNC110 - it asks
        await asyncio.sleep(0.05)
    await connection.close()
    outputs = sorted([(await command).removeprefix(f"{postgres_url} ") for command in commands])
    what, did = f"created with schema version {newest}", "created it"
    if before:
        what, did = f"migrated from schema version 1 to {newest}", "migrated it from 1"
    waited = f"has schema version {newest} already: another process {did} just now\n"
    assert outputs == [*[waited] * 4, f"was {what}\n"]


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
