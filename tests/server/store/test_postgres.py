"""The PostgreSQL backend meets the storage contract, also when two servers use the database in turns."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import cast

import pytest
from wattwise_server.clock import steady_clock
from wattwise_server.errors import ConflictError
from wattwise_server.store.open import open_store
from wattwise_server.store.postgres.backend import PostgresStore
from wattwise_server.store.transactions import Store

from tests.postgres import PostgresServer
from tests.server.store.conformance import Opener, StoreConformance, a_job, a_trial, with_trials
from tests.server.store.two_stores import InTurns, two_stores


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
        for each in store.stores if isinstance(store, InTurns) else [store]:
            if isinstance(each, PostgresStore):
                each.distrust()
        if store is None:
            self.postgres.execute(f"UPDATE servers SET seen = seen - {micros}", self.database)  # noqa: S608


@pytest.fixture(scope="module")
def newest_postgres() -> Iterator[PostgresServer]:
    """A running PostgreSQL of the newest version for tests that leave it as it is."""
    with PostgresServer.running(major=18) as running:
        yield running


@pytest.mark.thorough
class TestTwoPostgresStores(TestPostgresStore):
    """Two stores over one database of the newest PostgreSQL, used in turns."""

    @pytest.fixture
    def opener(self, newest_postgres: PostgresServer) -> Opener:
        """Opens the database twice."""
        self.postgres, url = newest_postgres, newest_postgres.create_database()
        self.database = url.rpartition("/")[2]

        @asynccontextmanager
        async def opened() -> AsyncIterator[Store]:
            async with two_stores(url) as stores:
                yield cast(Store, InTurns(stores))

        return opened

    async def test_transactions_of_a_new_job_are_serialized(self, opener: Opener) -> None:
        """Of two blocks that create one job at two servers, the later one ends in a conflict and finds it then."""
        async with opener() as store:
            with pytest.raises(ConflictError):  # noqa: PT012 - the conflict is raised by the block's exit
                async with store.transaction("j") as late:
                    async with store.transaction("j") as early:
                        early.save_job(a_job(eta_knob=0.25))
                    assert late.job is None
                    late.save_job(a_job())
            for _ in range(2):
                async with store.transaction("j") as tx:
                    assert tx.job == a_job(eta_knob=0.25)


async def test_a_job_that_is_read_again_during_a_block(postgres_url: str) -> None:
    """Of two blocks that share a commit, but have read their job at different times, one runs again."""
    async with open_store(postgres_url, steady_clock()) as store:
        assert isinstance(store, PostgresStore)
        async with store.transaction("j") as tx:
            tx.save_job(a_job())
        blocks = [store.transaction("j"), store.transaction("j")]
        for number, block in enumerate(blocks):
            tx = await block.__aenter__()
            assert tx.job is not None
            tx.save_job(with_trials(tx.job, 1))
            tx.save_trial(a_trial(1, launch_id=f"launch {number}"))
            store.distrust()
        ends = await asyncio.gather(*(block.__aexit__(None, None, None) for block in blocks), return_exceptions=True)
        assert [type(end) for end in ends].count(ConflictError) == 1
        async with store.transaction("j") as tx:
            kept = await tx.trial(1)
            assert kept is not None
            assert kept.launch_id == f"launch {[type(end) for end in ends].index(type(None))}"
