"""What the writer holds on to."""

from __future__ import annotations

import asyncio
import gc
import weakref
from datetime import datetime, timezone
from pathlib import Path

import pytest
from wattwise_server.errors import StorageUnavailableError
from wattwise_server.store.group import Sql, Statement
from wattwise_server.store.open import open_store
from wattwise_server.store.writer import Submission


class Owner:
    """Remembers what was submitted last, as a job's memory does."""

    lost = False
    submitted: Submission | None = None


async def test_what_is_durable_is_let_go(tmp_path: Path) -> None:
    """An owner who is forgotten is gone at once: no cycle keeps him until the garbage collector comes by."""
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


async def test_a_lone_submission_waits_for_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No timer stands between what was submitted alone and its commit, whoever submitted before."""
    now = datetime(2026, 1, 1, tzinfo=timezone.utc)
    async with open_store(f"sqlite:///{tmp_path / 'wattwise.db'}", lambda: now) as store:
        timers: list[object] = []
        monkeypatch.setattr(asyncio.get_running_loop(), "call_later", lambda *given: timers.append(given))
        for _ in range(3):
            await store._writer.submit(Owner(), [Statement(Sql("DELETE FROM jobs WHERE FALSE"), ())]).durable()
        monkeypatch.undo()
    assert timers == []


async def test_a_storage_that_fails_is_not_asked_for_everybody(tmp_path: Path) -> None:
    """A group that fails of the storage, and its first submission again: the others fail without a try of theirs."""
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
