"""`wattwise migrate`: what it says and does on both databases."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

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


def test_postgres_is_created_once_and_free_at_once(postgres_server: PostgresServer, postgres_url: str) -> None:
    """A new schema is created; to create it is no use of the database that a copy would have to wait for."""
    newest = max(postgres_migrations())
    assert migrated(postgres_url).endswith(f" was created with schema version {newest}\n")
    assert postgres_server.execute("SELECT count(*) FROM servers", postgres_url) == [["0"]]
    assert migrated(postgres_url).endswith(f" has schema version {newest} already\n")
    assert "names no database" in migrated("postgresql://nobody@127.0.0.1", status=1)
