"""The SQLite backend meets the storage contract."""

from __future__ import annotations

import asyncio
import os
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from wattwise.rules import EndReason, TrialStatus
from wattwise_server.clock import steady_clock
from wattwise_server.domain import TrialId
from wattwise_server.errors import JobDiffersError, StartError, StorageUnavailableError
from wattwise_server.store import reads, transactions
from wattwise_server.store.base import EventList, JobList, JobOrder, JobState, TrialList
from wattwise_server.store.open import open_store
from wattwise_server.store.sqlite.backend import SqliteStore
from wattwise_server.store.sqlite.connection import explain
from wattwise_server.store.sqlite.open import database_path
from wattwise_server.store.sqlite.statements import FORGET_DELETIONS, numbered
from wattwise_server.store.transactions import Store

from tests.server.site import writing_connection
from tests.server.store.conformance import (
    NOW,
    Opener,
    StoreConformance,
    a_job,
    a_trial,
    save_with_leases,
    save_with_trial,
    with_trials,
)
from tests.server.store.figures import ended_trial, figured_job, save


class TestSqliteStore(StoreConformance):
    """One file, opened repeatedly, with a clock that tests advance."""

    @pytest.fixture
    def opener(self, tmp_path: Path) -> Opener:
        """Opens the file."""
        clock, self.passed = steady_clock(), timedelta()

        def now() -> datetime:
            return clock() + self.passed

        return lambda: open_store(f"sqlite:///{tmp_path / 'store.db'}", now)

    async def pass_time(self, store: Store | None, seconds: float) -> None:  # noqa: ARG002 - other backends need it
        """Advances the clock."""
        self.passed += timedelta(seconds=seconds)

    async def test_lists_that_may_read_everything_have_a_connection_apart(self, opener: Opener) -> None:
        """One job's trials by number are read where jobs are read; other lists, and numbers of items, are not."""
        quick: list[JobList | TrialList] = [
            TrialList("j"),
            TrialList("j", statuses=(TrialStatus.RUNNING,), newest_first=True),
        ]
        slow: list[JobList | TrialList] = [
            JobList(),
            JobList(order=JobOrder.ATTENTION),
            TrialList(),
            TrialList("j", statuses=(TrialStatus.FAILED,)),
            TrialList("j", end_reasons=(EndReason.ERROR,)),
            TrialList("j", batch_size=8),
        ]

        async def page(store: SqliteStore, wanted: JobList | TrialList) -> Sequence[object]:
            return await (
                store.reads.jobs(wanted, 0, 9) if isinstance(wanted, JobList) else store.reads.trials(wanted, (), 9)
            )

        async def count(store: SqliteStore, wanted: JobList | TrialList) -> int:
            return await (
                store.reads.count_jobs(wanted) if isinstance(wanted, JobList) else store.reads.count_trials(wanted)
            )

        for closed, read, refused in (("slow", quick, slow), ("quick", slow, quick)):
            async with opener() as store:
                assert isinstance(store, SqliteStore)
                async with store.transaction("j") as tx:
                    if tx.job is None:
                        tx.save_job(a_job())
                await getattr(store.reads, closed).close()
                for wanted in read:
                    await page(store, wanted)
                for wanted in refused:
                    with pytest.raises(StorageUnavailableError):
                        await page(store, wanted)
                if closed == "quick":
                    assert [await count(store, wanted) for wanted in (*quick, *slow)] == [0, 0, 1, 1, 0, 0, 0, 0]
                    assert await store.reads.events(EventList(), (), 9) == []
                    assert await store.reads.deliveries_before("j", [NOW]) == [0]

    async def test_a_list_after_a_reset_reads_no_trial_from_before_it(self, opener: Opener) -> None:
        """What a list of jobs that need attention takes does not grow with the trials from before a reset."""
        numbers, steps = {"few": 10, "many": 1000}, [0]

        def step() -> None:
            steps[-1] += 1

        async with opener() as store:
            assert isinstance(store, SqliteStore)
            for job_id, count in numbers.items():
                trials = [ended_trial(number) for number in range(1, count + 1)]
                await save(store, figured_job(job_id, num_trials=count, reset_after=count), *trials)
            await store.reads.slow.set_progress_handler(step, 1)
            for job_id in numbers:
                assert await store.reads.jobs(JobList(job_id, states=(JobState.ATTENTION,)), 0, 9) == []
                steps.append(0)
        few, many, _ = steps
        assert 0 < many < 2 * few

    async def test_jobs_beyond_those_cached_are_read_again(
        self, opener: Opener, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A cache of three jobs holds few of thirty, and all are read as they were saved."""
        monkeypatch.setattr(transactions, "CACHED_JOBS", 3)
        async with opener() as store:
            for number in range(30):
                async with store.transaction(f"j{number}") as tx:
                    tx.save_job(a_job(f"j{number}"))
            for number in range(30):
                async with store.transaction(f"j{number}") as tx:
                    assert tx.job == a_job(f"j{number}")
            assert isinstance(store, SqliteStore)
            assert len(store.cache) <= 4

    async def test_refusal_waits_for_what_it_depends_on(self, opener: Opener, tmp_path: Path) -> None:
        """A refusal that read data whose commit fails is not given: the caller is to retry."""
        async with opener() as store:
            with closing(sqlite3.connect(tmp_path / "store.db")) as other:
                other.execute("CREATE TRIGGER full BEFORE INSERT ON jobs BEGIN SELECT RAISE(ABORT, 'full'); END")

            async def create() -> None:
                async with store.transaction("j") as tx:
                    assert tx.job is None
                    tx.save_job(a_job("j"))

            async def refuse() -> None:
                async with store.transaction("j") as tx:
                    assert tx.job is not None
                    raise JobDiffersError("j", [])

            for outcome in await asyncio.gather(create(), refuse(), return_exceptions=True):
                assert isinstance(outcome, StorageUnavailableError)

    @pytest.mark.parametrize("table", ["trials", "jobs"])
    async def test_lease_expires_although_an_end_could_not_be_saved(
        self, opener: Opener, tmp_path: Path, table: str
    ) -> None:
        """A trial whose end, or whose job's deletion, fails to become durable loses its lease all the same."""
        async with opener() as store:
            await save_with_leases(store, "j", 1)
            await self.pass_time(store, 3700)
            with closing(sqlite3.connect(tmp_path / "store.db")) as other:
                for event in ("INSERT", "DELETE"):
                    other.execute(
                        f"CREATE TRIGGER no_{event} BEFORE {event} ON {table} BEGIN SELECT RAISE(ABORT, 'full'); END"
                    )
            left = asyncio.Event()

            async def end() -> None:
                async with store.transaction("j") as tx:
                    if table == "trials":
                        tx.save_trial(a_trial(1, status=TrialStatus.FAILED, end_reason=EndReason.ERROR))
                    else:
                        tx.delete_job()
                    left.set()

            ending = asyncio.create_task(end())
            await left.wait()
            before = await store.expired_leases()
            with pytest.raises(StorageUnavailableError):
                await ending
            assert before == ([] if table == "trials" else [TrialId("j", trial_number=1)])
            await self.pass_time(store, 1)
            assert await store.expired_leases() == [TrialId("j", trial_number=1)]

    async def test_failed_commit_fails_what_depends_on_it_and_nothing_else(
        self, opener: Opener, tmp_path: Path
    ) -> None:
        """A block that read data whose commit failed is refused; another job in the same group is committed."""
        async with opener() as store:
            for job_id in ("j1", "j2"):
                async with store.transaction(job_id) as tx:
                    tx.save_job(a_job(job_id))
            with closing(sqlite3.connect(tmp_path / "store.db")) as other:
                other.execute("CREATE TRIGGER full BEFORE INSERT ON trials BEGIN SELECT RAISE(ABORT, 'full'); END")

            async def save(job_id: str, number: int | None) -> None:
                async with store.transaction(job_id) as tx:
                    tx.save_job(replace(a_job(job_id), num_observations=7))
                    if number:
                        tx.save_trial(a_trial(number, job_id))

            culprit, innocent = asyncio.create_task(save("j1", 1)), asyncio.create_task(save("j2", None))
            await asyncio.sleep(0)
            with pytest.raises(StorageUnavailableError, match="retry"):  # noqa: PT012 - the block is what is left
                async with store.transaction("j1") as tx:
                    await asyncio.wait({culprit, innocent})
                    tx.save_job(replace(a_job("j1"), num_observations=8))
            assert isinstance(culprit.exception(), StorageUnavailableError)
            assert "full" in str(culprit.exception())
            assert innocent.exception() is None
            for job_id, observations in (("j1", 0), ("j2", 7)):
                async with store.transaction(job_id) as tx:
                    assert tx.job is not None
                    assert tx.job.num_observations == observations

    async def test_invalid_value_does_not_stop_the_writer(self, opener: Opener) -> None:
        """A value that SQLite cannot hold is refused, and the next transaction is committed."""
        async with opener() as store:
            with pytest.raises(StorageUnavailableError):
                async with store.transaction("j1") as tx:
                    tx.save_job(a_job("j1", window_size=2**70))
            async with store.transaction("j2") as tx:
                tx.save_job(a_job("j2"))
        async with opener() as store:
            assert [each.job.spec.job_id for each in await store.reads.jobs(JobList(), 0, 10)] == ["j2"]

    async def test_damaged_job_harms_no_other(self, opener: Opener, tmp_path: Path) -> None:
        """A job whose row is damaged is refused by name, as often as it is read; other jobs are served."""
        async with opener() as store:
            for job_id in ("damaged", "sound"):
                async with store.transaction(job_id) as tx:
                    tx.save_job(a_job(job_id))
        with closing(sqlite3.connect(tmp_path / "store.db")) as other, other:
            other.execute("UPDATE jobs SET warnings = '[' WHERE job_id = 'damaged'")
        async with opener() as store:
            for _ in range(2):
                with pytest.raises(StorageUnavailableError, match="'damaged'"):
                    await store.transaction("damaged").__aenter__()
            with pytest.raises(StorageUnavailableError, match="'damaged'"):
                await store.reads.jobs(JobList(), 0, 10)
            async with store.transaction("sound") as tx:
                assert tx.job == a_job("sound")

    async def test_long_trials_are_read_in_pages(self, opener: Opener, tmp_path: Path) -> None:
        """Measurements are read from an epoch on, in both directions, each once."""
        async with opener() as store:
            async with store.transaction("j") as tx:
                tx.save_job(with_trials(a_job(), 1))
                tx.save_trial(a_trial(1))
            with closing(sqlite3.connect(tmp_path / "store.db")) as other, other:
                other.executemany(
                    "INSERT INTO measurements VALUES (1, 1, ?, 1, 1, 1, 1, NULL, NULL, NULL, NULL)",
                    [(epoch,) for epoch in range(1, 2_501)],
                )
            for newest_first, expected in ((False, list(range(1, 2_501))), (True, list(range(2_500, 0, -1)))):
                found: list[int] = []
                while len(found) < 2_500:
                    async with store.transaction("j") as tx:
                        after = found[-1] if found else 0
                        page = await tx.measurements(1, after=after, newest_first=newest_first, limit=1_000)
                    assert len(page) == min(1_000, 2_500 - len(found))
                    found += [each.epoch for each in page]
                assert found == expected

    @pytest.mark.parametrize("suffix", ["", "-wal"])
    async def test_nothing_is_saved_or_read_while_the_file_is_away(
        self, opener: Opener, tmp_path: Path, suffix: str
    ) -> None:
        """SQLite would go on writing into a file without a name: blocks are refused until it is back, then served."""
        file = tmp_path / f"store.db{suffix}"
        async with opener() as store:
            async with store.transaction("j") as tx:
                tx.save_job(a_job())
            await save_with_trial(store, "another")
            kept = file.rename(tmp_path / "kept")
            for _ in range(2):
                with pytest.raises(StorageUnavailableError, match=str(file)):
                    async with store.transaction("j") as tx:
                        tx.save_job(replace(a_job(), num_observations=7))
                with pytest.raises(StorageUnavailableError, match=str(file)):
                    await store.transaction("another").__aenter__()
            kept.rename(file)
            async with store.transaction("j") as tx:
                tx.save_job(replace(a_job(), num_observations=8))
        async with opener() as store, store.transaction("j") as tx:
            assert tx.job is not None
            assert tx.job.num_observations == 8

    async def test_windows_are_read_by_their_index(self, opener: Opener, tmp_path: Path) -> None:
        """The newest results of each batch size are found without reading every trial of the job."""
        async with opener():
            with closing(sqlite3.connect(tmp_path / "store.db")) as other:
                plan = [row[3] for row in other.execute(f"EXPLAIN QUERY PLAN {numbered(reads._WINDOWS)}", (1, 0, 10))]  # noqa: SLF001 - its plan
        assert any("trials_by_observation (job_key=? AND batch_size=?" in step for step in plan)

    async def test_old_deletions_are_found_by_their_index(self, opener: Opener, tmp_path: Path) -> None:
        """A deletion does not read all that were deleted in a year."""
        async with opener():
            with closing(sqlite3.connect(tmp_path / "store.db")) as other:
                plan = [row[3] for row in other.execute(f"EXPLAIN QUERY PLAN {FORGET_DELETIONS}", (1,))]
        assert any("_by_time (delete_time<?)" in step for step in plan)

    async def test_commits_reach_the_disk(self, opener: Opener) -> None:
        """The writing connection syncs every commit to the disk, without which a power failure could lose it."""
        async with opener() as store:
            assert isinstance(store, SqliteStore)
            found = await writing_connection(store).execute_fetchall("PRAGMA synchronous")
            assert [tuple(row) for row in found] == [(2,)]

    async def test_unknown_jobs_are_not_cached(self, opener: Opener) -> None:
        """Reading jobs that do not exist leaves nothing in the cache."""
        async with opener() as store:
            for number in range(10):
                async with store.transaction(f"unknown {number}") as tx:
                    assert tx.job is None
            assert isinstance(store, SqliteStore)
            assert not store.cache


@pytest.mark.parametrize(("mode", "warned"), [(0o777, True), (0o1777, False), (0o775, False), (0o700, False)])
def test_open_folder_is_warned_of(tmp_path: Path, caplog: pytest.LogCaptureFixture, mode: int, warned: bool) -> None:
    """The log says that others may delete the database, unless they may at most add files to its folder."""

    async def start() -> None:
        async with open_store(f"sqlite:///{tmp_path / 'store.db'}", steady_clock()):
            pass

    tmp_path.chmod(mode)
    asyncio.run(start())
    assert ("open folder" in caplog.text) is warned
    advice = "".join(str(record.fields["message"]) for record in caplog.records if record.message == "open folder")  # type: ignore[attr-defined]
    assert advice.endswith(f"chmod o-w {tmp_path}" if warned else "")


@pytest.mark.parametrize("database", [None, b""])
async def test_log_of_a_lost_database_is_not_discarded(tmp_path: Path, database: bytes | None) -> None:
    """A log without its database is kept, and nothing is opened; an empty one has nothing to lose."""
    file, log = tmp_path / "store.db", tmp_path / "store.db-wal"
    log.write_bytes(b"results")
    if database is not None:
        file.write_bytes(database)
    with pytest.raises(StartError, match=str(log)):
        await open_store(f"sqlite:///{file}", steady_clock()).__aenter__()
    assert log.read_bytes() == b"results"
    log.write_bytes(b"")
    async with open_store(f"sqlite:///{file}", steady_clock()) as store:
        assert await store.reads.content() == (0, 0)


@pytest.mark.parametrize("url", ["", "sqlite://", "sqlite:///", "sqlite:///:memory:", "postgresql:///a.db", "a.db"])
def test_url_without_a_file_is_refused(url: str) -> None:
    """A URL names a file; a database in memory would be lost."""
    with pytest.raises(StartError):
        database_path(url)


def test_url_names_its_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Three slashes begin a path in the current folder, four an absolute one."""
    monkeypatch.chdir(tmp_path)
    assert database_path("sqlite:///a.db") == tmp_path / "a.db"
    assert database_path("sqlite:////a/b.db") == Path("/a/b.db")


@pytest.mark.parametrize(
    ("trouble", "statement", "advice"),
    [
        ("full", "PRAGMA max_page_count = 1; CREATE TABLE more (x)", "free some space"),
        ("readonly", "CREATE TABLE more (x)", "may write the file"),
        ("missing", "SELECT 1", "may read and write the file"),
        ("malformed", "SELECT * FROM jobs", "restore a backup"),
        ("garbage", "SELECT * FROM jobs", "not a Wattwise database"),
        ("none", "SELECT * FROM nothing", ""),
    ],
)
def test_sqlite_errors_are_explained(tmp_path: Path, trouble: str, statement: str, advice: str) -> None:
    """An error of SQLite's that an operator can do something about says what; any other is as SQLite words it."""
    file = tmp_path / "store.db"
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("CREATE TABLE jobs (job_id)")
        connection.execute("CREATE TABLE trials (x)")
    if trouble == "malformed":
        os.truncate(file, 4096)
    elif trouble == "garbage":
        file.write_bytes(b"x" * 10_000)
    elif trouble == "missing":
        file.unlink()
    uri = f"file:{file}?mode={'ro' if trouble == 'readonly' else 'rw'}"
    with pytest.raises(sqlite3.Error) as raised, closing(sqlite3.connect(uri, uri=True)) as connection:
        connection.executescript(statement)
    found = explain(raised.value)
    assert found.startswith(str(raised.value))
    assert (advice in found) if advice else found == str(raised.value)


def test_other_errors_are_not_shown() -> None:
    """What is not an error of SQLite's may say anything, which the log has: a caller is not shown it."""
    assert "secret" not in explain(ValueError("secret"))


def test_statements_with_keys_of_jobs_are_forgotten() -> None:
    """The texts of statements that have been run do not become more and more."""
    for key in range(2000):
        assert numbered(f"SELECT {key}, $1") == f"SELECT {key}, ?1"
    assert numbered.cache_info().currsize <= 1000
