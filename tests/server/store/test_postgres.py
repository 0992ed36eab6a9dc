"""The PostgreSQL backend meets the storage contract."""

from __future__ import annotations

import pytest
from wattwise_server.clock import steady_clock
from wattwise_server.store.base import Store
from wattwise_server.store.open import open_store
from wattwise_server.store.postgres.backend import PostgresStore

from tests.postgres import PostgresServer
from tests.server.store.conformance import Opener, StoreConformance


class TestPostgresStore(StoreConformance):
    """One database, opened repeatedly."""

    @pytest.fixture
    def opener(self, postgres_server: PostgresServer) -> Opener:
        """Opens the database."""
        self.postgres, url = postgres_server, postgres_server.create_database()
        self.database = url.rpartition("/")[2]
        return lambda: open_store(url, steady_clock())

    async def pass_time(self, store: Store | None, seconds: float) -> None:
        """Moves back the times in the database, which the store then reads again."""
        micros = int(seconds * 1e6)
        moved = f"UPDATE leases SET expires = expires - {micros}, claimed = claimed - {micros}"  # noqa: S608
        self.postgres.execute(moved, self.database)
        if isinstance(store, PostgresStore):
            store.distrust()
        else:
            self.postgres.execute(f"UPDATE servers SET seen = seen - {micros}", self.database)  # noqa: S608
