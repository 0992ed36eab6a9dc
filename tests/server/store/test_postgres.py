"""The PostgreSQL backend meets the storage contract."""

from __future__ import annotations

import asyncpg
import pytest
from wattwise_server.clock import steady_clock
from wattwise_server.store.open import open_store

from tests.server.store.conformance import Opener, StoreConformance


@pytest.mark.skip(reason="needs a server that the tests start")
class TestPostgresStore(StoreConformance):
    """One database, opened repeatedly."""

    @pytest.fixture
    async def opener(self) -> Opener:
        """Opens the database."""
        c = await asyncpg.connect("postgresql://postgres@127.0.0.1:5999/postgres")
        await c.execute("DROP DATABASE IF EXISTS t2 WITH (FORCE)")
        await c.execute("CREATE DATABASE t2")
        await c.close()
        return lambda: open_store("postgresql://postgres@127.0.0.1:5999/t2", steady_clock())
