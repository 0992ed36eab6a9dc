"""The writer: references, waiting and failures."""

from __future__ import annotations

import asyncio
import gc
import weakref
from datetime import datetime, timezone
from pathlib import Path

import pytest
from wattwise_server.errors import StorageUnavailableError
from wattwise_server.store.connection import Sql, Statement
from wattwise_server.store.open import open_store
from wattwise_server.store.writer import Submission


class Owner:
    """Keeps its last submission, as a cached job does."""

    failed = False
    submitted: Submission | None = None


async def test_durable_submission_keeps_no_owner_alive(tmp_path: Path) -> None:
    """A dropped owner is freed at once: no reference cycle keeps it until the garbage collector runs."""
    now = datetime(2026, 1, 1, tzinfo=timezone.utc)
    async with open_store(f"sqlite:///{tmp_path / 'wattwise.db'}", lambda: now) as store:
        owner = Owner()
        owner.submitted = store._writer.submit(owner, [Statement(Sql("DELETE FROM jobs WHERE FALSE"), ())])
        await owner.submitted.durable()
        there = weakref.ref(owner)
        gc.disable()
        try:
            del owner
            assert there() is None
        finally:
            gc.enable()


async def test_lone_submission_does_not_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No timer is set between a lone submission and its commit, whichever owner submitted before."""
    now = datetime(2026, 1, 1, tzinfo=timezone.utc)
    async with open_store(f"sqlite:///{tmp_path / 'wattwise.db'}", lambda: now) as store:
        timers: list[object] = []
        monkeypatch.setattr(asyncio.get_running_loop(), "call_later", lambda *timer: timers.append(timer))
        for _ in range(3):
            await store._writer.submit(Owner(), [Statement(Sql("DELETE FROM jobs WHERE FALSE"), ())]).durable()
        monkeypatch.undo()
    assert timers == []


async def test_storage_failure_fails_the_whole_group(tmp_path: Path) -> None:
    """After a storage error the group and its first submission are tried; the others fail untried."""
    now = datetime(2026, 1, 1, tzinfo=timezone.utc)
    async with open_store(f"sqlite:///{tmp_path / 'wattwise.db'}", lambda: now) as store:
        seen: list[str] = []
        await store._writer._group.connection.set_trace_callback(seen.append)
        statements = [Statement(Sql("DELETE FROM jobs WHERE FALSE"), ()), Statement(Sql("DELETE FROM nothing"), ())]
        submissions = [store._writer.submit(Owner(), statements) for _ in range(5)]
        for submission in submissions:
            with pytest.raises(StorageUnavailableError):
                await submission.durable()
        assert seen.count("BEGIN IMMEDIATE") == 2


async def test_nothing_of_an_owner_is_saved_after_a_failure(tmp_path: Path) -> None:
    """What an owner submits after a submission that failed depends on it, and fails too, in this group or the next."""
    now = datetime(2026, 1, 1, tzinfo=timezone.utc)
    async with open_store(f"sqlite:///{tmp_path / 'wattwise.db'}", lambda: now) as store:
        forget = Sql("INSERT INTO deletions (job_id, request_id, create_time, delete_time) VALUES (?, '', 0, ?)")
        owner, other = Owner(), Owner()
        bad = store._writer.submit(owner, [Statement(forget, ("bad", None))])
        same_group = store._writer.submit(owner, [Statement(forget, ("same group", 1))])
        bystander = store._writer.submit(other, [Statement(forget, ("bystander", 1))])
        with pytest.raises(StorageUnavailableError):
            await bad.durable()
        next_group = store._writer.submit(owner, [Statement(forget, ("next group", 1))])
        for submission in (same_group, next_group):
            with pytest.raises(StorageUnavailableError):
                await submission.durable()
        await bystander.durable()
        saved = await store.queries._all("SELECT job_id FROM deletions")
        assert [row["job_id"] for row in saved] == ["bystander"]
