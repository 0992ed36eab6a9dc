"""The writer: references, waiting and failures."""

from __future__ import annotations

import asyncio
import gc
import sqlite3
import weakref
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from time import perf_counter
from typing import Any

import pytest
from wattwise_server.errors import ConflictError, StorageUnavailableError
from wattwise_server.observability.observers import Observers
from wattwise_server.store.base import JobList
from wattwise_server.store.changes import PruneEvents, Put, delete_job, insert_job
from wattwise_server.store.open import open_store
from wattwise_server.store.tables import DELETIONS
from wattwise_server.store.writer import Submission

from tests.server.rival import Rival
from tests.server.site import writing_connection
from tests.server.store.conformance import a_job

NOTHING = [PruneEvents(0, 1)]


class Owner:
    """Keeps its last submission, as a cached job does."""

    failed = False
    outdated = False
    submitted: Submission | None = None


async def test_durable_submission_keeps_no_owner_alive(tmp_path: Path) -> None:
    """A dropped owner is freed at once: no reference cycle keeps it until the garbage collector runs."""
    now = datetime(2026, 1, 1, tzinfo=timezone.utc)
    async with open_store(f"sqlite:///{tmp_path / 'wattwise.db'}", lambda: now) as store:
        owner = Owner()
        owner.submitted = store.writer.submit(owner, NOTHING)
        await owner.submitted.durable()
        there = weakref.ref(owner)
        gc.disable()
        try:
            del owner
            assert there() is None
        finally:
            gc.enable()


async def test_lone_submission_does_not_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No timer is set between one or a few submissions and their commit, whichever owners submitted before."""
    now = datetime(2026, 1, 1, tzinfo=timezone.utc)
    async with open_store(f"sqlite:///{tmp_path / 'wattwise.db'}", lambda: now) as store:
        timers: list[object] = []
        monkeypatch.setattr(asyncio.get_running_loop(), "call_later", lambda *timer: timers.append(timer))
        for count in (1, 1, 1, 12):
            submitted = [store.writer.submit(Owner(), NOTHING) for _ in range(count)]
            for submission in submitted:
                await submission.durable()
        monkeypatch.undo()
    assert timers == []


@pytest.mark.parametrize(
    ("submissions", "age", "waits"),
    [(1, 0.0, True), (5, 0.04, True), (6, 0.0, False), (1, 0.06, False)],
)
async def test_commit_waits_for_a_third_of_a_crowd(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, submissions: int, age: float, waits: bool
) -> None:
    """If twenty owners have submitted a moment ago, a commit waits for six of them, a millisecond and once again."""
    now = datetime(2026, 1, 1, tzinfo=timezone.utc)
    async with open_store(f"sqlite:///{tmp_path / 'wattwise.db'}", lambda: now) as store:
        loop = asyncio.get_running_loop()
        timers: list[float] = []

        def call_at_once(delay: float, callback: Callable[..., object], *arguments: Any) -> asyncio.Handle:
            timers.append(delay)
            return loop.call_soon(callback, *arguments)

        clock = [loop.time()]
        monkeypatch.setattr(loop, "time", lambda: clock[0])
        owners = [Owner() for _ in range(20)]
        for submission in [store.writer.submit(owner, NOTHING) for owner in owners]:
            await submission.durable()
        clock[0] += age
        monkeypatch.setattr(loop, "call_later", call_at_once)
        for submission in [store.writer.submit(owner, NOTHING) for owner in owners[:submissions]]:
            await submission.durable()
        monkeypatch.undo()
    assert timers == ([0.001, 0.001] if waits else [])


async def test_storage_failure_fails_the_whole_group(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """After a storage error the group and its first submission are tried; the others fail untried, for this reason."""
    now = datetime(2026, 1, 1, tzinfo=timezone.utc)
    async with open_store(f"sqlite:///{tmp_path / 'wattwise.db'}", lambda: now) as store:
        seen: list[str] = []
        await writing_connection(store).set_trace_callback(seen.append)
        await writing_connection(store).execute("DROP TABLE deletions")
        lost = Put(DELETIONS, ("j", "", 0, 1))
        submissions = [store.writer.submit(Owner(), [*NOTHING, lost]) for _ in range(5)]
        for submission in submissions:
            with pytest.raises(StorageUnavailableError, match="no such table"):
                await submission.durable()
        assert seen.count("BEGIN IMMEDIATE") == 2
    (logged,) = (record for record in caplog.records if record.message == "commit failed")
    assert set(logged.fields) == {"cause", "message"}  # type: ignore[attr-defined]
    assert "no such table" in logged.fields["cause"]  # type: ignore[attr-defined]


def deleted(file: Path) -> list[str]:
    """The ids of the jobs whose deletion a file remembers, ascending."""
    with closing(sqlite3.connect(file)) as connection:
        return [job_id for (job_id,) in connection.execute("SELECT job_id FROM deletions ORDER BY job_id")]


async def test_nothing_of_an_owner_is_saved_after_a_failure(tmp_path: Path) -> None:
    """What an owner submits after a submission that failed depends on it, and fails too, in this group or the next."""
    now = datetime(2026, 1, 1, tzinfo=timezone.utc)
    async with open_store(f"sqlite:///{tmp_path / 'wattwise.db'}", lambda: now) as store:
        owner, other = Owner(), Owner()
        bad = store.writer.submit(owner, [Put(DELETIONS, ("bad", "", 0, None))])
        same_group = store.writer.submit(owner, [Put(DELETIONS, ("same group", "", 0, 1))])
        bystander = store.writer.submit(other, [Put(DELETIONS, ("bystander", "", 0, 1))])
        with pytest.raises(StorageUnavailableError):
            await bad.durable()
        next_group = store.writer.submit(owner, [Put(DELETIONS, ("next group", "", 0, 1))])
        for submission in (same_group, next_group):
            with pytest.raises(StorageUnavailableError):
                await submission.durable()
        await bystander.durable()
        assert deleted(tmp_path / "wattwise.db") == ["bystander"]


async def test_outdated_owner_ends_in_conflicts(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """What was submitted for an owner that another server has changed is not saved, in this group or a later one."""
    now = datetime(2026, 1, 1, tzinfo=timezone.utc)
    async with open_store(f"sqlite:///{tmp_path / 'wattwise.db'}", lambda: now) as store:
        rival, owner = Rival(store, 1), Owner()
        first, second = (store.writer.submit(owner, insert_job(number, a_job(f"j{number}"))) for number in (1, 2))
        for submission in (first, second):
            with pytest.raises(ConflictError):
                await submission.durable()
        assert (owner.failed, owner.outdated, rival.met) == (True, True, 1)
        with pytest.raises(ConflictError):
            await store.writer.submit(owner, insert_job(3, a_job("j3"))).durable()
        await store.writer.submit(Owner(), insert_job(4, a_job("j4"))).durable()
        assert [each.position for each in await store.reads.jobs(JobList(), 0, 10)] == [4]
    assert "commit failed" not in caplog.messages


class Commits(Observers):
    """Keeps the rows and seconds of each commit, and counts those that failed."""

    def __init__(self) -> None:
        super().__init__()
        self.done: list[tuple[int, float]] = []
        self.failed = 0

    def committed(self, rows: int, seconds: float) -> None:
        """Keeps both."""
        self.done.append((rows, seconds))

    def commit_failed(self) -> None:
        """Counts it."""
        self.failed += 1


async def test_commits_are_observed_with_what_they_wrote(tmp_path: Path) -> None:
    """A change of a job writes its row and those of its arms that changed; the time is that of the commit."""
    now, commits = datetime(2026, 1, 1, tzinfo=timezone.utc), Commits()
    began = perf_counter()
    async with open_store(f"sqlite:///{tmp_path / 'wattwise.db'}", lambda: now, commits) as store:
        job = a_job()
        first, second = job.search.arms
        for arms in ((first, second), (replace(first, running=1), second), (replace(first, pruned=True), second)):
            async with store.transaction("j") as tx:
                tx.save_job(replace(job, search=replace(job.search, arms=arms)))
    assert [rows for rows, _ in commits.done] == [3, 1, 2]
    assert 0 < sum(seconds for _, seconds in commits.done) < perf_counter() - began
    assert commits.failed == 0


async def test_deletion_keeps_a_commit_in_order(tmp_path: Path) -> None:
    """A job that is deleted and created again while another one is created: one commit does all of it in order."""
    now, commits = datetime(2026, 1, 1, tzinfo=timezone.utc), Commits()
    async with open_store(f"sqlite:///{tmp_path / 'wattwise.db'}", lambda: now, commits) as store:
        await store.writer.submit(Owner(), insert_job(1, a_job())).durable()
        other, delete, again = (
            store.writer.submit(Owner(), changes)
            for changes in (insert_job(2, a_job("other")), [delete_job(1, "j", now)], insert_job(3, a_job()))
        )
        for submission in (other, delete, again):
            await submission.durable()
        assert [each.position for each in await store.reads.jobs(JobList(), 0, 10)] == [2, 3]
    assert (len(commits.done), commits.failed) == (2, 0)


async def test_changes_beside_a_deletion_keep_their_order(tmp_path: Path) -> None:
    """Equal changes are made once each, and after what was submitted before them."""
    now, commits = datetime(2026, 1, 1, tzinfo=timezone.utc), Commits()
    async with open_store(f"sqlite:///{tmp_path / 'wattwise.db'}", lambda: now, commits) as store:
        first, again = insert_job(1, a_job()), insert_job(2, a_job())
        kept, gone = insert_job(3, a_job("kept")), insert_job(4, a_job("gone"))
        changes = [*first, delete_job(1, "j", now), *again, *kept, *gone, delete_job(4, "gone", now)]
        await store.writer.submit(Owner(), changes).durable()
        assert [each.position for each in await store.reads.jobs(JobList(), 0, 10)] == [2, 3]
        assert deleted(tmp_path / "wattwise.db") == ["gone", "j"]
    assert commits.failed == 0
