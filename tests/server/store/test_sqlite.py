"""The SQLite backend keeps the contract."""

from __future__ import annotations

from pathlib import Path

import pytest
from wattwise_server.clock import steady_clock
from wattwise_server.store import sqlite
from wattwise_server.store.open import open_store

from tests.server.store.conformance import Opener, StoreConformance, a_job


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
        monkeypatch.setattr(sqlite, "REMEMBERED_JOBS", 3)
        async with opener() as store:
            for number in range(30):
                async with store.transaction(f"j{number}") as tx:
                    tx.save_job(a_job(f"j{number}"))
            for number in range(30):
                async with store.transaction(f"j{number}") as tx:
                    assert tx.job == a_job(f"j{number}")
            assert isinstance(store, sqlite.SqliteStore)
            assert len(store._entries) <= 4
