"""A new column: what CONTRIBUTING.md says that it takes is enough, in both databases."""

from __future__ import annotations

import ast
import asyncio
import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import asyncpg
import pytest
import wattwise_server
from wattwise import v1
from wattwise_server.store.postgres.migrate import migrations as postgres_migrations
from wattwise_server.store.sqlite.migrate import migrations as sqlite_migrations
from wattwise_server.store.tables import ARMS, JOBS, LAUNCHES, POWER_LIMITS, TRIALS, Table

from tests.jobs import Trainer
from tests.live_server import LiveServer

_FIELD = '    note: str = "none"\n'


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """The folder of a server with one more column in `trials` and in `jobs`."""
    package = tmp_path / "program" / "wattwise_server"
    shutil.copytree(Path(wattwise_server.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__"))
    add_fields(package / "domain.py", "Trial", "Job")
    for folder, kind, known in (
        ("sqlite", "TEXT", max(sqlite_migrations())),
        ("postgres", "text", max(postgres_migrations())),
    ):
        columns = (
            f"ALTER TABLE {table} ADD COLUMN note {kind} NOT NULL DEFAULT 'none';" for table in ("trials", "jobs")
        )
        text = "\n".join((f"-- min_reader_version: {known}", *columns))
        (package / "store" / folder / "migrations" / f"{known + 1:04}_note.sql").write_text(text)
    return package.parent


def add_fields(file: Path, *classes: str) -> None:
    """Adds the field behind the last one of each class."""
    text = file.read_text()
    lines = text.splitlines(keepends=True)
    found = [node for node in ast.parse(text).body if isinstance(node, ast.ClassDef) and node.name in classes]
    assert len(found) == len(classes)
    for node in sorted(found, key=lambda node: -node.lineno):
        last = max(each.end_lineno or 0 for each in node.body if isinstance(each, ast.AnnAssign))
        lines.insert(last, _FIELD)
    file.write_text("".join(lines))


class Databases:
    """What a test does with both databases, and with the server that has one more column."""

    def __init__(self, folder: Path, program: Path) -> None:
        self._folder = folder
        self._environment = {"PYTHONPATH": os.pathsep.join((str(program), *filter(None, sys.path)))}

    def begin(self, url: str, launch: str) -> None:
        """Begins a trial of a launch."""
        with LiveServer(self._folder, url) as server:
            server.environment |= self._environment
            server.start()
            Trainer(server.trainer, job_id="test-j").next(launch)
            assert server.stop() == 0

    def deliver(self, url: str, launch: str) -> Sequence[v1.Trial]:
        """Reports two epochs of a launch, of which the second reaches the target; returns the list of trials."""
        with LiveServer(self._folder, url) as server:
            server.environment |= self._environment
            server.start()
            trainer = Trainer(server.trainer, job_id="test-j")
            trial = trainer.next(launch)
            assert not trainer.report(trial, 10.0, metric=0.1).stop_train
            assert trainer.report(trial, 20.0, epoch=2, time=2.0).target_reached
            trials = server.admin.ListTrials(v1.ListTrialsRequest(job_id="test-j")).trials
            assert server.stop() == 0
        return trials

    def copy(self, source: str, target: str) -> None:
        """Copies a database."""
        command = [sys.executable, "-m", "wattwise", "copy", source, target]
        done = subprocess.run(
            command, env={**os.environ, **self._environment}, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr


def note(url: str, trial_number: int, value: str) -> None:
    """Sets the new column of a trial and of its job."""
    run(url, f"UPDATE trials SET note = '{value}' WHERE trial_number = {trial_number}")  # noqa: S608
    run(url, f"UPDATE jobs SET note = '{value}'")  # noqa: S608


def notes(url: str) -> Mapping[int, str]:
    """The new column of the trials by number; 0 is that of the job."""
    return dict(run(url, "SELECT trial_number, note FROM trials UNION ALL SELECT 0, note FROM jobs"))


def run(url: str, sql: str) -> Any:
    """Runs a statement on a database that no server uses; returns its rows."""
    if url.startswith("sqlite"):
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None)) as connection:
            return connection.execute(sql).fetchall()

    async def fetch() -> Any:
        there = await asyncpg.connect(url)
        try:
            return [tuple(row) for row in await there.fetch(sql)]
        finally:
            await there.close()

    return asyncio.run(fetch())


@pytest.mark.thorough
def test_a_field_and_two_migrations_make_a_column(program: Path, tmp_path: Path, postgres_url: str) -> None:
    """A server reads it, writes it with the end of a trial and with its job, lists and copies it."""
    databases = Databases(tmp_path, program)
    file, back = f"sqlite:///{tmp_path / 'first.db'}", f"sqlite:///{tmp_path / 'back.db'}"
    databases.begin(file, "a")
    assert notes(file) == {0: "none", 1: "none"}
    note(file, 1, "one")
    assert [trial.status for trial in databases.deliver(file, "a")] == [v1.TRIAL_STATUS_DECIDED]
    assert notes(file) == {0: "one", 1: "one"}
    databases.copy(file, postgres_url)
    databases.begin(postgres_url, "b")
    note(postgres_url, 2, "two")
    assert len(databases.deliver(postgres_url, "b")) == 2
    assert notes(postgres_url) == {0: "two", 1: "one", 2: "two"}
    databases.copy(postgres_url, back)
    assert notes(back) == {0: "two", 1: "one", 2: "two"}


@pytest.mark.parametrize("tables", [(JOBS,), (ARMS, POWER_LIMITS), (TRIALS, LAUNCHES)])
def test_columns_that_are_read_together_have_different_names(tables: Sequence[Table]) -> None:
    """A row has one value for each name; the tables share their key alone."""
    names = [column.name for table in tables for column in table.columns if column not in table.key]
    assert sorted(set(names)) == sorted(names)
