"""Migrations of a file: how they are numbered, what they refuse, and that they keep the rows or change nothing."""

from __future__ import annotations

import re
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from wattwise_server.clock import steady_clock
from wattwise_server.errors import StartError
from wattwise_server.store.open import open_store
from wattwise_server.store.sqlite.migrate import migrate, migrations, schema_version

NEWEST = max(migrations())


@pytest.mark.parametrize(
    "names", [("0001_a.sql", "0002_b.sql", "0002_c.sql"), ("0001_a.sql", "0003_b.sql"), ("0002_a.sql",)]
)
def test_a_version_that_is_used_twice_or_missing_is_an_error(tmp_path: Path, names: tuple[str, ...]) -> None:
    """Numbers that are not 1, 2 and so on are found before any file is touched."""
    for name in names:
        (tmp_path / name).write_text("SELECT 1;", encoding="utf-8")
    with pytest.raises(RuntimeError, match=re.escape(", ".join(names))):
        migrations(tmp_path)


def test_later_migration_keeps_the_rows(tmp_path: Path) -> None:
    """A file gets every missing migration, and the program without them then refuses it."""
    with closing(sqlite3.connect(tmp_path / "w.db", isolation_level=None)) as connection:
        assert migrate(connection, "w.db") == 0
        connection.execute("INSERT INTO secrets VALUES ('extra', x'07')")
        later = {
            NEWEST + 1: "ALTER TABLE secrets ADD COLUMN more INTEGER NOT NULL DEFAULT 3;",
            NEWEST + 2: "UPDATE secrets SET more = more + 1;",
        }
        assert migrate(connection, "w.db", migrations() | later) == NEWEST
        assert schema_version(connection) == NEWEST + 2
        assert connection.execute("SELECT value, more FROM secrets WHERE name = 'extra'").fetchone() == (b"\x07", 4)
        with pytest.raises(StartError, match="run a newer Wattwise"):
            migrate(connection, "w.db")


@pytest.mark.parametrize("trace", ["CREATE TABLE other (x)", "PRAGMA user_version = 1"])
async def test_database_of_another_program_is_not_touched(tmp_path: Path, trace: str) -> None:
    """A file with tables or a version, but not of this program, is refused by name; not one byte of it changes."""
    file = tmp_path / "other.db"
    with closing(sqlite3.connect(file)) as connection:
        connection.execute(trace)
    before = file.read_bytes()
    with pytest.raises(StartError, match=str(file)):
        await open_store(f"sqlite:///{file}", steady_clock()).__aenter__()
    assert file.read_bytes() == before


async def test_schema_is_written_once(tmp_path: Path) -> None:
    """A database of the newest version is opened without a change of its schema or its marks."""
    url = f"sqlite:///{tmp_path / 'w.db'}"
    async with open_store(url, steady_clock()):
        pass
    before = (tmp_path / "w.db").read_bytes()
    async with open_store(url, steady_clock()):
        pass
    assert (tmp_path / "w.db").read_bytes() == before


def test_migration_that_fails_changes_nothing(tmp_path: Path) -> None:
    """The error is that of the statement that failed; the steps before it are undone."""
    with closing(sqlite3.connect(tmp_path / "w.db")) as connection:
        with pytest.raises(sqlite3.OperationalError, match="already exists"):
            migrate(connection, "w.db", {1: "CREATE TABLE one (x);", 2: "CREATE TABLE one (x);"})
        assert not connection.in_transaction
        assert connection.execute("SELECT count(*) FROM sqlite_master").fetchone() == (0,)
