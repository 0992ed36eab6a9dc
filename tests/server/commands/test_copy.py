"""`wattwise copy` between SQLite and PostgreSQL."""

from __future__ import annotations

import asyncio
import itertools
import os
import re
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import asyncpg
import grpc
import pytest
from wattwise import v1
from wattwise_server.errors import StartError
from wattwise_server.store.copying import Checksum
from wattwise_server.store.postgres import copying as postgres_copying
from wattwise_server.store.postgres.migrate import migrations as postgres_migrations
from wattwise_server.store.sqlite import copying as sqlite_copying
from wattwise_server.store.sqlite.migrate import migrations
from wattwise_server.store.tables import TABLES

from tests.conformance.refusal import MismatchError
from tests.conformance.replay import Replay
from tests.forking import ForkedProcess, run
from tests.jobs import Trainer, power_sample
from tests.live_server import LiveServer
from tests.test_scenarios import OverGrpc, scenarios
from tests.waiting import wait_until

_T = TypeVar("_T")
_SESSIONS = itertools.count(1)
WATTWISE = str(Path(sys.executable).with_name("wattwise"))
NAMES = [table.name for table in TABLES]
OF_ONE_DATABASE = {"job_versions", "leases", "servers", "retention", "wattwise_schema"}


def copy(source: str | Path, target: str | Path, *, fails: bool = False) -> str:
    """Runs `wattwise copy`, with paths for files; returns its output, or its error if it `fails`."""
    done = run("copy", url_of(source), url_of(target))
    assert done.returncode == (1 if fails else 0), done
    assert "Traceback" not in done.stderr
    assert bool(done.stderr) == fails
    return done.stderr if fails else done.stdout


def url_of(database: str | Path) -> str:
    """The URL of a file; others as they are."""
    return f"sqlite:///{database}" if isinstance(database, Path) else database


def dump(path: Path) -> list[str]:
    """All rows of a file."""
    with closing(sqlite3.connect(path)) as connection:
        return list(connection.iterdump())


def ask(url: str, question: Callable[[Any], Awaitable[_T]]) -> _T:
    """The answer of a database."""

    async def run() -> _T:
        connection = await asyncpg.connect(url)
        try:
            return await question(connection)
        finally:
            await connection.close()

    return asyncio.run(run())


def execute(url: str, sql: str) -> None:
    """Runs statements."""
    ask(url, lambda connection: connection.execute(sql))


def counts(url: str) -> dict[str, int]:
    """The number of rows of every table of a database."""

    async def count(connection: Any) -> dict[str, int]:
        return {table: await connection.fetchval(f"SELECT count(*) FROM {table}") for table in NAMES}  # noqa: S608

    return ask(url, count)


@pytest.fixture(scope="module", params=["a third", pytest.param("all", marks=pytest.mark.thorough)])
def filled(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of a server that served scenarios of every behaviour table, had a job deleted, and was stopped."""
    served = scenarios() if request.param == "all" else scenarios()[::3]
    folder = tmp_path_factory.mktemp("filled")

    async def serve_all(address: str) -> None:
        few = asyncio.Semaphore(16)

        async def serve(replay: Replay) -> None:
            # Beside others a scenario may miss what its table says of time.
            async with few:
                with suppress(MismatchError):
                    await replay.run()

        async with grpc.aio.insecure_channel(address) as channel:
            server = OverGrpc(channel)
            replays = [Replay(each.values[0], server, f"copied-{n}") for n, each in enumerate(served)]
            await asyncio.gather(*map(serve, replays))

    with LiveServer(folder) as live:
        live.start()
        asyncio.run(serve_all(live.address))
        job = Trainer(live.trainer, job_id="test-copied-deleted")
        job.run(10)
        job.next("still-runs")
        live.admin.DeleteJob(v1.DeleteJobRequest(job_id=job.job_id))
        job = Trainer(live.trainer, job_id="test-copied-runs", trial_lease_seconds=1000)
        job.run(10)
        for epoch in (1, 2, 3):
            job.report(trial := job.next(f"launch-{epoch}"), 1, metric=float("nan"), epoch=1)
        job.end(trial, v1.END_REASON_PREEMPTED)
        profile = v1.ReportPowerProfileRequest(trial=job.next("launch-4").id, samples=[power_sample()])
        live.trainer.ReportPowerProfile(profile)
        assert live.stop() == 0
    return live.database


@pytest.fixture
def file(filled: Path, tmp_path: Path) -> Path:
    """A copy of that file."""
    path = tmp_path / "wattwise.db"
    with closing(sqlite3.connect(filled)) as source, closing(sqlite3.connect(path)) as target:
        source.backup(target)
    return path


@contextmanager
def server_on(url: str, folder: Path) -> Iterator[LiveServer]:
    """A server on a database."""
    folder.mkdir()
    with LiveServer(folder) as live:
        live.start("--database", url)
        yield live


def test_there_and_back_again(file: Path, postgres_url: str, tmp_path: Path) -> None:
    """A file that goes to PostgreSQL and back equals the first row for row; the output counts and hashes all."""
    before = dump(file)
    there = copy(file, postgres_url)
    assert dump(file) == before, "the source is unchanged"
    back = copy(postgres_url, tmp_path / "back.db")
    assert dump(tmp_path / "back.db") == before
    onward = copy(tmp_path / "back.db", tmp_path / "onward.db")
    assert dump(tmp_path / "onward.db") == before
    listed = [re.findall(r"^(\w+) +(\d+)  ([0-9a-f]{64})$", output, re.MULTILINE) for output in (there, back, onward)]
    assert listed[0] == listed[1] == listed[2]
    assert {table: int(count) for table, count, _ in listed[0]} == counts(postgres_url)
    assert {table for table, count in counts(postgres_url).items() if not count} == set(), "the test needs rows"
    assert {path.name for path in tmp_path.glob(".*")} == set()


def test_every_table_is_copied_or_belongs_to_one_database(file: Path, postgres_url: str) -> None:
    """Both schemas have no other tables."""
    with closing(sqlite3.connect(file)) as connection:
        ours = {row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    copy(file, postgres_url)
    rows = ask(postgres_url, lambda c: c.fetch("SELECT tablename FROM pg_tables WHERE schemaname = 'public'"))
    assert {name for name in ours if not name.startswith("sqlite_")} == set(NAMES)
    assert {row["tablename"] for row in rows} == {*NAMES, *OF_ONE_DATABASE}


@pytest.mark.thorough
def test_a_server_on_the_copy_decides_the_same(file: Path, postgres_url: str, tmp_path: Path) -> None:
    """For every job the same next trial and the same answer to the launch ids so far; new jobs find their place."""
    copy(file, postgres_url)
    began = time.time()

    def outcome(live: LiveServer, job_id: str, launch_id: str) -> object:
        request = v1.GetNextBatchSizeRequest(job_id=job_id, launch_id=launch_id)
        try:
            trial = live.trainer.GetNextBatchSize(request).trial
        except grpc.RpcError as error:
            return error.code()
        return trial.id, trial.origin, trial.pruning_gts

    with server_on(url_of(file), tmp_path / "old") as old, server_on(postgres_url, tmp_path / "new") as new:
        jobs = [row.job.spec.job_id for row in old.admin.ListJobs(v1.ListJobsRequest(page_size=1000)).jobs]
        assert len(jobs) == counts(postgres_url)["jobs"] > 50
        launches = [
            (job, trial.id.launch_id)
            for job in jobs
            for trial in old.admin.ListTrials(v1.ListTrialsRequest(job_id=job, page_size=1000)).trials
            if trial.id.launch_id
        ]
        for job, launch in (*launches, *((job, "a-new-launch") for job in jobs)):
            assert outcome(old, job, launch) == outcome(new, job, launch), (job, launch)
        assert Trainer(new.trainer).run(1).id.trial_number == 1
        listed = new.admin.ListTrials(
            v1.ListTrialsRequest(job_id="test-copied-runs", statuses=[v1.TRIAL_STATUS_RUNNING])
        ).trials
        assert len(listed) == 4
        assert all(trial.lease_expire_time.seconds >= began + 999 for trial in listed), "each has a whole lease"
        gone = v1.TrialId(job_id="test-copied-deleted", trial_number=2, launch_id="still-runs")
        for live in (old, new):
            assert live.trainer.Heartbeat(v1.HeartbeatRequest(trial=gone)).decision.stop_train


def test_used_databases_are_refused(filled: Path, file: Path, postgres_url: str, tmp_path: Path) -> None:
    """Neither side may have a server; a server that was stopped a moment ago is none."""
    other = tmp_path / "other.db"
    with LiveServer(tmp_path) as live:
        live.start()
        assert "another server uses" in copy(file, postgres_url, fails=True)
        assert "another server uses" in copy(filled, file, fails=True)
    copy(file, postgres_url)
    with server_on(postgres_url, tmp_path / "new") as live:
        assert "is in use" in copy(postgres_url, other, fails=True)
        assert "is in use" in copy(file, postgres_url, fails=True)
        live.stop()
        copy(postgres_url, other)
    assert not list(tmp_path.glob(".*"))


def test_targets_with_content_are_refused(file: Path, postgres_url: str, tmp_path: Path) -> None:
    """A target with jobs is refused and unchanged; one that a server has opened without a job is filled."""
    empty = tmp_path / "empty.db"
    for database in (url_of(empty), postgres_url):
        assert run("migrate", "--database", database).returncode == 0
    copy(file, empty)
    copy(file, postgres_url)
    before, rows = dump(empty), counts(postgres_url)
    assert dump(file) == before
    for target in (empty, postgres_url):
        assert "has content" in copy(file, target, fails=True)
    with closing(sqlite3.connect(empty)) as connection, connection:
        connection.execute("DELETE FROM jobs")
    assert "has content" in copy(file, empty, fails=True), "it remembers deleted jobs"
    assert counts(postgres_url) == rows


def test_one_database_on_both_sides_is_refused(file: Path, postgres_url: str) -> None:
    """A copy of a database to itself is refused, under whatever name."""
    before = dump(file)
    link, hard = file.with_name("link.db"), file.with_name("hard.db")
    link.symlink_to(file)
    os.link(file, hard)
    for other in (file, link, hard, f"sqlite:///{os.path.relpath(file)}"):
        assert "is both the source and the target" in copy(file, other, fails=True)
    assert dump(file) == before
    copy(file, postgres_url)
    for other in (postgres_url, postgres_url.replace("postgresql:", "postgres:")):
        assert "is both the source and the target" in copy(postgres_url, other, fails=True)


def test_sources_of_other_versions_are_refused(filled: Path, file: Path, postgres_url: str, tmp_path: Path) -> None:
    """A newer schema needs a newer program, others are foreign."""
    target = tmp_path / "target.db"
    copy(file, postgres_url)
    with closing(sqlite3.connect(file)) as connection:
        connection.execute(f"PRAGMA user_version = {max(migrations()) + 1}")
    assert "run a newer Wattwise" in copy(file, target, fails=True)
    for other, words in ((0, "not a database of Wattwise"), (99, "run a newer Wattwise")):
        execute(postgres_url, f"UPDATE wattwise_schema SET version = {other}")  # noqa: S608 - a number
        assert words in copy(postgres_url, target, fails=True)
    foreign = tmp_path / "foreign.db"
    with closing(sqlite3.connect(foreign)) as connection:
        connection.execute("CREATE TABLE jobs (a)")
    assert "not a Wattwise database" in copy(foreign, target, fails=True)
    assert "not a Wattwise database" in copy(filled, foreign, fails=True)
    assert not target.exists()


async def test_older_sources_have_to_be_migrated_first(
    file: Path, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program with a later migration copies only databases that have it."""
    copy(file, postgres_url)
    files, databases = migrations(), postgres_migrations()
    later = files | {max(files) + 1: ""}, databases | {max(databases) + 1: databases[max(databases)]}
    monkeypatch.setattr(sqlite_copying, "migrations", lambda: later[0])
    monkeypatch.setattr(postgres_copying, "migrations", lambda: later[1])
    with pytest.raises(StartError, match="run `wattwise migrate --database"):
        async with sqlite_copying.open_source(url_of(file)):
            pass
    with pytest.raises(StartError, match="run `wattwise migrate` first"):
        async with postgres_copying.open_source(postgres_url, "it"):
            pass


def test_bad_urls_are_refused(file: Path, postgres_url: str, tmp_path: Path) -> None:
    """As by `wattwise serve`; a password is never shown."""
    for url in ("mysql://root:sesame@db", "postgresq://root:ses/?me@db/x", "postgresq://root@db/x?password=sesame"):
        error = copy(file, url, fails=True)
        assert "names no database" in error
        assert "ses" not in error
    assert "there is no file" in copy(tmp_path / "missing.db", postgres_url, fails=True)
    assert "there is no folder" in copy(file, tmp_path / "missing" / "x.db", fails=True)
    parts = urlsplit(postgres_url)
    host = parts.netloc.rpartition("@")[2]
    wrong = parts._replace(netloc=f"postgres:sesame@{host}", path="/missing").geturl()
    for error in (copy(file, wrong, fails=True), copy(wrong, tmp_path / "x.db", fails=True)):
        assert "missing" in error
        assert "sesame" not in error
    assert "sesame" not in copy(file, "postgresql://a:sesame@db:port/x", fails=True)


@contextmanager
def held(url: str, sql: str) -> Iterator[subprocess.Popen[str]]:
    """A connection, in a process of its own, that holds a lock."""
    program = (
        "import asyncio, asyncpg, sys\n"
        "async def main():\n"
        "    connection = await asyncpg.connect(sys.argv[1])\n"
        "    await connection.execute('BEGIN; ' + sys.argv[2])\n"
        "    print('held', flush=True)\n"
        "    await asyncio.to_thread(sys.stdin.read)\n"
        "    await connection.close()\n"
        "asyncio.run(main())"
    )
    command = [sys.executable, "-c", program, url, sql]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield process


@contextmanager
def stuck_copy(source: str | Path, target: str | Path, url: str) -> Iterator[ForkedProcess]:
    """A copy that waits for a lock in the database of a URL."""
    waiting = "SELECT EXISTS (SELECT 1 FROM pg_locks WHERE NOT granted)"
    process = ForkedProcess("copy", url_of(source), url_of(target))
    try:
        wait_until(lambda: bool(ask(url, lambda connection: connection.fetchval(waiting))))
        yield process
    finally:
        process.kill()


@pytest.mark.thorough
def test_an_interrupted_copy_leaves_postgres_empty(file: Path, postgres_url: str, tmp_path: Path) -> None:
    """Killed, interrupted or cut off in the middle, a copy leaves nothing; no server starts meanwhile."""
    assert run("migrate", "--database", postgres_url).returncode == 0
    execute(
        postgres_url,
        "CREATE FUNCTION wait() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        " PERFORM pg_advisory_xact_lock(1); RETURN NEW; END $$;"
        "CREATE TRIGGER wait BEFORE INSERT ON measurements FOR EACH ROW EXECUTE FUNCTION wait()",
    )
    empty = counts(postgres_url)
    for way, status in (("killed", -9), ("interrupted", 130), ("cut off", 1)):
        lock = held(postgres_url, "SELECT pg_advisory_xact_lock(1)")
        with lock, stuck_copy(file, postgres_url, postgres_url) as copying:
            if way == "killed":
                cannot_serve(postgres_url, "is being copied")
                cannot_serve(url_of(file), "another server uses")
                copying.kill()
            elif way == "interrupted":
                copying.send_signal(signal.SIGINT)
            else:
                execute(
                    postgres_url,
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'wattwise'"
                    " AND datname = current_database()",
                )
            error = copying.communicate(timeout=30)[1]
            assert copying.returncode == status
            assert "Traceback" not in error
        wait_until(lambda: not connections(postgres_url))
        assert counts(postgres_url) == empty
    before = dump(file)
    copy(file, postgres_url)
    copy(postgres_url, tmp_path / "back.db")
    assert dump(tmp_path / "back.db") == before


def cannot_serve(url: str, words: str) -> None:
    """A server refuses a database, and says why."""
    done = run("serve", "--address", "127.0.0.1:0", "--database", url)
    assert done.returncode == 1
    assert words in done.stderr


def connections(url: str) -> int:
    """How many connections of Wattwise a database has."""
    sql = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'wattwise' AND datname = current_database()"
    return int(ask(url, lambda connection: connection.fetchval(sql)))


@pytest.mark.thorough
def test_an_interrupted_copy_leaves_no_file(file: Path, postgres_url: str, tmp_path: Path) -> None:
    """Killed, interrupted or cut off in the middle, a copy leaves no target."""
    copy(file, postgres_url)
    target = tmp_path / "target.db"
    for number in (signal.SIGINT, signal.SIGKILL):
        lock = held(postgres_url, "LOCK TABLE measurements")
        with lock, stuck_copy(postgres_url, target, postgres_url) as copying:
            copying.send_signal(number)
            copying.communicate(timeout=30)
        wait_until(lambda: not connections(postgres_url))
        assert not target.exists()
        assert len(list(tmp_path.glob(".target.db.*"))) == (number == signal.SIGKILL)
    copy(postgres_url, target)
    assert dump(target) == dump(file)


def test_a_difference_is_noticed(file: Path, postgres_url: str) -> None:
    """A target that stores another value is not filled."""
    assert run("migrate", "--database", postgres_url).returncode == 0
    execute(
        postgres_url,
        "CREATE FUNCTION alter_one() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        " NEW.failed_cost := NEW.failed_cost + 1; RETURN NEW; END $$;"
        "CREATE TRIGGER alter_one BEFORE INSERT ON arms FOR EACH ROW WHEN (NEW.batch_size = 64)"
        " EXECUTE FUNCTION alter_one()",
    )
    error = copy(file, postgres_url, fails=True)
    assert "arms (" in error
    assert "trials (" not in error
    found = counts(postgres_url)
    assert found.pop("secrets") == 1
    assert not any(found.values())


def test_checksums_are_of_the_rows_whatever_their_order() -> None:
    """The order of rows does not matter; every value, and how often a row is there, does."""

    def digest(*rows: tuple[object, ...]) -> str:
        checksum = Checksum()
        checksum.add(rows)
        return checksum.digest

    assert digest((1, "a"), (2, "b")) == digest((2, "b"), (1, "a"))
    others = [digest((1, "a")), digest((1, "a"), (1, "a")), digest((1, None)), digest((1, "")), digest(("1", "a"))]
    assert len({*others, digest((1, b"a")), digest((1.0, "a")), digest((1, "a"), (2, "b"))}) == 8
