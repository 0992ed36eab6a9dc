"""The SQLite backend keeps the contract."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from wattwise_server.clock import steady_clock
from wattwise_server.errors import StorageUnavailableError
from wattwise_server.store import sqlite as sqlite_store
from wattwise_server.store.open import open_store

from tests.server.store.conformance import Opener, StoreConformance, a_job, a_trial


class TestSqliteStore(StoreConformance):
    """One file, opened again and again."""

    @pytest.fixture
    def opener(self, tmp_path: Path) -> Opener:
        """Opens the file."""
        return lambda: open_store(f"sqlite:///{tmp_path / 'store.db'}", steady_clock())

    async def test_jobs_beyond_those_remembered_are_read_anew(
        self, opener: Opener, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """With room for three jobs, the memory holds few of thirty, and all are as they were saved."""
        monkeypatch.setattr(sqlite_store, "REMEMBERED_JOBS", 3)
        async with opener() as store:
            for number in range(30):
                async with store.transaction(f"j{number}") as tx:
                    tx.save_job(a_job(f"j{number}"))
            for number in range(30):
                async with store.transaction(f"j{number}") as tx:
                    assert tx.job == a_job(f"j{number}")
            assert isinstance(store, sqlite_store.SqliteStore)
            assert len(store._entries) <= 4

    async def test_block_that_saw_what_was_lost_is_refused(self, opener: Opener, tmp_path: Path) -> None:
        """When a commit fails, a block that was open meanwhile is refused: it may have seen what was not kept."""
        async with opener() as store:
            for job_id in ("j1", "j2"):
                async with store.transaction(job_id) as tx:
                    tx.save_job(a_job(job_id))
            with closing(sqlite3.connect(tmp_path / "store.db")) as other:
                other.execute("CREATE TRIGGER full BEFORE INSERT ON trials BEGIN SELECT RAISE(ABORT, 'full'); END")
            with pytest.raises(StorageUnavailableError, match="rests on"):  # noqa: PT012 - the block is what is left
                async with store.transaction("j1") as one:
                    one.save_job(replace(a_job("j1"), num_observations=7))
                    with pytest.raises(StorageUnavailableError, match="full"):
                        async with store.transaction("j2") as two:
                            two.save_trial(a_trial(1, "j2"))
            async with store.transaction("j1") as one:
                assert one.job == a_job("j1")
