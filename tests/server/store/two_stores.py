"""Two servers' stores over one database, used in turns as if they were one."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager
from datetime import datetime

from wattwise_server.clock import Clock, steady_clock
from wattwise_server.domain import TrialId
from wattwise_server.observability.observers import Observer
from wattwise_server.store.open import open_store
from wattwise_server.store.postgres.backend import PostgresStore
from wattwise_server.store.postgres.reads import PostgresReads
from wattwise_server.store.subscriptions import JobsSubscription, Subscription
from wattwise_server.store.transactions import Transaction
from wattwise_server.usecases.retries import retried


def open_postgres_store(url: str) -> AbstractAsyncContextManager[PostgresStore]:
    """Opens a database as a server does."""
    return open_store(url, steady_clock())  # type: ignore[return-value]


@asynccontextmanager
async def two_stores(url: str) -> AsyncIterator[tuple[PostgresStore, PostgresStore]]:
    """The stores of two servers that know of each other."""
    async with open_postgres_store(url) as first, open_postgres_store(url) as second:
        # Otherwise it would learn only after a second that it is not alone.
        await first.saver.note()
        yield first, second


@retried
async def refresh(store: PostgresStore, job_id: str) -> None:
    """Lets a store notice what another one has changed of a job."""
    async with store.transaction(job_id):
        pass


class InTurns:
    """A store each of whose calls goes to the next of two stores.

    A block first learns what the other store has changed, so that blocks that do not overlap do not conflict.
    """

    def __init__(self, stores: Sequence[PostgresStore]) -> None:
        self.stores = stores
        self.page_token_key = stores[0].page_token_key
        self.shared = True
        self.clock: Clock = lambda: next(self._turns).clock()
        self._turns = itertools.cycle(stores)

    def check(self) -> None:
        """Checks both."""
        for store in self.stores:
            store.check()

    @property
    def observer(self) -> Observer:
        """That of both."""
        return self.stores[0].observer

    @observer.setter
    def observer(self, observer: Observer) -> None:
        for store in self.stores:
            store.observer = observer

    @property
    def reads(self) -> PostgresReads:
        """Those of the next store."""
        return next(self._turns).reads

    @asynccontextmanager
    async def transaction(self, job_id: str) -> AsyncIterator[Transaction]:
        """A block of the next store."""
        store = next(self._turns)
        await refresh(store, job_id)
        async with store.transaction(job_id) as tx:
            yield tx

    async def forget_events(self, before: datetime) -> None:
        """By the next store."""
        await next(self._turns).forget_events(before)

    async def prune(self, ended_before: datetime) -> None:
        """By the next store."""
        await next(self._turns).prune(ended_before)

    async def expired_leases(self) -> Sequence[TrialId]:
        """By the next store."""
        return await next(self._turns).expired_leases()

    def subscribe(self, job_id: str, trial_number: int | None = None) -> AbstractContextManager[Subscription]:
        """At the next store."""
        return next(self._turns).subscribe(job_id, trial_number)

    def subscribe_jobs(self, prefix: str) -> AbstractContextManager[JobsSubscription]:
        """At the next store."""
        return next(self._turns).subscribe_jobs(prefix)

    async def close(self) -> None:
        """Nothing: the blocks that opened the stores close them."""
