"""Two servers' stores over one database, used in turns as if they were one."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager
from datetime import datetime

from wattwise_server.clock import Clock, steady_clock
from wattwise_server.domain import ListedJob, PowerSample, TrialId
from wattwise_server.store.base import (
    Bucket,
    Day,
    HistoryList,
    JobList,
    JobPlace,
    JobVersion,
    ListedEntry,
    ListedTrial,
    Place,
    PolicyState,
    Prices,
    Spent,
    Transaction,
    TrialGroup,
    TrialList,
)
from wattwise_server.store.open import open_store
from wattwise_server.store.postgres.backend import PostgresStore
from wattwise_server.store.subscriptions import JobsSubscription, Subscription
from wattwise_server.usecases.retries import retried


def open_postgres_store(url: str) -> AbstractAsyncContextManager[PostgresStore]:
    """Opens a database as a server does."""
    return open_store(url, steady_clock())  # type: ignore[return-value]


@asynccontextmanager
async def two_stores(url: str) -> AsyncIterator[tuple[PostgresStore, PostgresStore]]:
    """The stores of two servers that know of each other."""
    async with open_postgres_store(url) as first, open_postgres_store(url) as second:
        # Otherwise it would learn only after a second that it is not alone.
        await first._saver.note()
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

    async def content(self) -> tuple[int, int]:
        """By the next store."""
        return await next(self._turns).content()

    @asynccontextmanager
    async def transaction(self, job_id: str) -> AsyncIterator[Transaction]:
        """A block of the next store."""
        store = next(self._turns)
        await refresh(store, job_id)
        async with store.transaction(job_id) as tx:
            yield tx

    async def jobs(self, wanted: JobList, after: JobPlace, limit: int) -> Sequence[ListedJob]:
        """By the next store."""
        return await next(self._turns).jobs(wanted, after, limit)

    async def count_jobs(self, wanted: JobList) -> int:
        """By the next store."""
        return await next(self._turns).count_jobs(wanted)

    async def trials(self, wanted: TrialList, after: Place, limit: int) -> Sequence[ListedTrial]:
        """By the next store."""
        return await next(self._turns).trials(wanted, after, limit)

    async def count_trials(self, wanted: TrialList) -> int:
        """By the next store."""
        return await next(self._turns).count_trials(wanted)

    async def deliveries_before(self, job_id: str, times: Sequence[datetime]) -> Sequence[int]:
        """By the next store."""
        return await next(self._turns).deliveries_before(job_id, times)

    async def job_versions(
        self, prefix: str = "", job_id: str | None = None, keys: Sequence[int] | None = None
    ) -> Sequence[JobVersion]:
        """By the next store."""
        return await next(self._turns).job_versions(prefix, job_id, keys)

    async def policy_states(self, keys: Sequence[int]) -> Mapping[int, PolicyState]:
        """By the next store."""
        return await next(self._turns).policy_states(keys)

    async def trial_groups(
        self, keys: Sequence[int], prices: Prices, splits: Mapping[int, int]
    ) -> Mapping[int, Sequence[TrialGroup]]:
        """By the next store."""
        return await next(self._turns).trial_groups(keys, prices, splits)

    async def running_groups(self, keys: Sequence[int] | None) -> Mapping[int, Sequence[TrialGroup]]:
        """By the next store."""
        return await next(self._turns).running_groups(keys)

    async def buckets(self, key: int, first: int, width: int, *, with_excluded: bool) -> Sequence[Bucket]:
        """By the next store."""
        return await next(self._turns).buckets(key, first, width, with_excluded=with_excluded)

    async def spent(self, key: int, first: int, width: int, compared_from: int) -> Sequence[Spent]:
        """By the next store."""
        return await next(self._turns).spent(key, first, width, compared_from)

    async def deliveries_since(self, key: int, time: datetime, compared_from: int) -> int:
        """By the next store."""
        return await next(self._turns).deliveries_since(key, time, compared_from)

    async def break_even(self, key: int, baseline: float, compared_from: int) -> int | None:
        """By the next store."""
        return await next(self._turns).break_even(key, baseline, compared_from)

    async def days(self, key: int, since: datetime) -> Sequence[Day]:
        """By the next store."""
        return await next(self._turns).days(key, since)

    async def profiles(self, key: int) -> Sequence[tuple[int, int, Sequence[PowerSample]]]:
        """By the next store."""
        return await next(self._turns).profiles(key)

    async def history(self, wanted: HistoryList, after: Place, limit: int) -> Sequence[ListedEntry]:
        """By the next store."""
        return await next(self._turns).history(wanted, after, limit)

    async def forget_history(self, before: datetime) -> None:
        """By the next store."""
        await next(self._turns).forget_history(before)

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
