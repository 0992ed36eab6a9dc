"""What only a database that several servers share has: conflicts, notices, leases by its clock, migrations at once."""

from __future__ import annotations

import asyncio
import contextlib
import math
from contextlib import AsyncExitStack
from dataclasses import replace
from datetime import timedelta

import asyncpg
import pytest
from wattwise.rules import EndReason, GpuGroup, TrialStatus
from wattwise_server.clock import steady_clock
from wattwise_server.domain import Job, Measurement, PowerSample
from wattwise_server.errors import ConflictError, StartError, StorageUnavailableError, TooManyJobsError
from wattwise_server.events import PriorUnused
from wattwise_server.store.base import JobList, TrialList
from wattwise_server.store.changes import Lease
from wattwise_server.store.open import open_store
from wattwise_server.store.postgres.backend import PostgresStore
from wattwise_server.store.postgres.group_call import GroupCall
from wattwise_server.store.postgres.notices import Notice, Notices
from wattwise_server.store.transactions import CachedJob
from wattwise_server.store.writer import Submission
from wattwise_server.usecases.retries import retried

from tests.ports import hold_port, port_of
from tests.postgres import PostgresServer
from tests.server.site import Published
from tests.server.store.conformance import (
    NOW,
    a_job,
    a_trial,
    look_for_room,
    save_with_leases,
    save_with_trial,
    was_launch_deleted,
    with_trials,
)
from tests.server.store.test_writer import Commits
from tests.server.store.two_stores import open_postgres_store, refresh, two_stores


async def observe(store: PostgresStore, number: int) -> None:
    """Sets the number of observations of the job `j`."""
    async with store.transaction("j") as tx:
        assert tx.job is not None
        tx.save_job(replace(tx.job, num_observations=number))


@retried
async def job_of(store: PostgresStore, job_id: str = "j") -> Job | None:
    """The job as a store sees it."""
    async with store.transaction(job_id) as tx:
        return tx.job


def notices_of(store: PostgresStore) -> Notices:
    """What sends and receives a store's notices."""
    assert isinstance(store.notices, Notices)
    return store.notices


async def test_later_of_two_writers_changes_nothing(postgres_url: str) -> None:
    """Two blocks at two servers: the second to leave ends in a conflict, without any of what it saved."""
    async with two_stores(postgres_url) as (one, other):
        await save_with_trial(one, "j")
        one.observer = published = Published()
        with pytest.raises(ConflictError):  # noqa: PT012 - the conflict is raised by the block's exit
            async with one.transaction("j") as late:
                await observe(other, 1)
                assert late.job is not None
                job = replace(with_trials(late.job, 2), num_observations=2)
                late.record(job, PriorUnused(job.spec, job.spec, "a test"))
                late.save_trial(a_trial(2))
                late.add_measurement(a_trial(1, last=Measurement(1, 1, 1, 1, NOW)))
        assert published.kinds == []
        for store in (one, other):
            await refresh(store, "j")
            async with store.transaction("j") as tx:
                assert tx.job is not None
                assert (tx.job.num_observations, tx.job.num_trials) == (1, 1)
                assert [trial.number for trial in tx.running()] == [1]
                assert await tx.measurements(1) == []


@pytest.mark.parametrize("refuses", [False, True])
async def test_answer_rests_on_the_newest_version(postgres_url: str, refuses: bool) -> None:
    """A block that only reads, or that refuses, ends in a conflict if another server has changed the job."""
    async with two_stores(postgres_url) as (one, other):
        await save_with_trial(one, "j")
        with pytest.raises(ConflictError):  # noqa: PT012 - the conflict is raised by the block's exit
            async with one.transaction("j") as tx:
                await observe(other, 1)
                assert tx.job is not None
                assert tx.job.num_observations == 0
                if refuses:
                    raise TooManyJobsError("j", 1)
        found = await job_of(one)
        assert found is not None
        assert found.num_observations == 1


async def test_deleted_job_is_gone_for_other_servers(postgres_url: str) -> None:
    """A server that knows the job from before ends in a conflict, then finds none, or the one created since."""
    async with two_stores(postgres_url) as (one, other):
        await save_with_trial(one, "j")
        with pytest.raises(ConflictError):  # noqa: PT012 - the conflict is raised by the block's exit
            async with other.transaction("j") as late:
                async with one.transaction("j") as tx:
                    tx.delete_job()
                assert late.job is not None
                late.save_job(with_trials(late.job, 2))
        assert await job_of(other) is None
        async with other.transaction("j") as tx:
            tx.save_job(a_job(eta_knob=0.25))
        assert await job_of(one) == await job_of(other) == a_job(eta_knob=0.25)


async def test_job_created_elsewhere_is_found_behind_a_block_that_found_none(postgres_url: str) -> None:
    """A call that waits for one which found no job looks again: another server may have created it before."""
    async with two_stores(postgres_url) as (one, other):
        # As if its notice were lost.
        one.notices = None
        async with other.transaction("j") as early:
            assert early.job is None
            await save_with_trial(one, "j")
            late = asyncio.create_task(job_of(other))
            while other.cache["j"].users < 2:  # noqa: ASYNC110 - until it waits
                await asyncio.sleep(0)
        assert await late is not None


async def test_dispatch_and_deletion_of_one_job_in_one_group(postgres_url: str) -> None:
    """A group that dispatches a trial with a launch and a profile, and then deletes its job, commits at once."""
    commits = Commits()
    async with open_store(postgres_url, steady_clock(), commits) as store:
        assert isinstance(store, PostgresStore)
        await save_with_trial(store, "j")

        async def dispatch() -> None:
            async with store.transaction("j") as tx:
                assert tx.job is not None
                trial = a_trial(2, launch_id="another")
                tx.save_job(with_trials(tx.job, 2))
                tx.save_trial(trial)
                tx.add_launch(trial)
                tx.save_samples(trial, [PowerSample(300.0, 1.0, 100.0, 10)])

        async def delete() -> None:
            async with store.transaction("j") as tx:
                assert tx.running_trial(2) is not None
                tx.delete_job()

        async with store.saver.lock:
            # Both wait for the first, so that they are one group.
            groups = len(store.writer.groups)
            first = asyncio.create_task(refresh(store, "j"))
            while len(store.writer.groups) == groups:  # noqa: ASYNC110 - until it is on its way
                await asyncio.sleep(0)
            group = asyncio.gather(dispatch(), delete())
            while len(store.writer.waiting) < 2:  # noqa: ASYNC110
                await asyncio.sleep(0)
            before = len(commits.done)
        await first
        await group
        assert (len(commits.done) - before, commits.failed) == (1, 0)
        assert await store.reads.jobs(JobList(), 0, 10) == []
        assert await was_launch_deleted(store, "j", "another", None)


async def test_creations_and_changes_in_one_group_take_their_locks_in_order(postgres_url: str) -> None:
    """A group that creates a job with a limit locks the jobs that it changes first, as those of other servers do."""
    async with open_postgres_store(postgres_url) as store:
        await save_with_trial(store, "j")
        rival = await asyncpg.connect(postgres_url)

        async def create() -> None:
            async with store.transaction("other") as tx:
                await tx.make_room("o", 100)
                tx.save_job(a_job("other"))

        async with rival.transaction():
            await rival.execute("SELECT FROM job_versions FOR UPDATE")
            async with store.saver.lock:
                # Both wait for the first, so that they are one group.
                groups = len(store.writer.groups)
                first = asyncio.create_task(refresh(store, "j"))
                while len(store.writer.groups) == groups:  # noqa: ASYNC110 - until it is on its way
                    await asyncio.sleep(0)
                group = asyncio.gather(create(), observe(store, 1))
                while len(store.writer.waiting) < 2:  # noqa: ASYNC110
                    await asyncio.sleep(0)
            await first
            while not await rival.fetchval("SELECT count(*) > 0 FROM pg_locks WHERE NOT granted"):
                pass
            locks = await rival.fetch("SELECT locktype FROM pg_locks WHERE NOT granted")
            assert [row["locktype"] for row in locks] == ["transactionid"]
            assert await rival.fetchval("SELECT pg_try_advisory_xact_lock(8677, 1)")
        await group
        await rival.close()


def test_leases_of_a_group_are_renewed_in_order() -> None:
    """Otherwise two servers that renew the same leases could wait for each other."""
    owners = [CachedJob(key=key, version=1) for key in (3, 1, 2)]
    group = [Submission(owner, [Lease(owner.key, 1, 10**6)], None) for owner in owners]
    arguments = GroupCall(group).query(1, 0)[1]
    assert [1, 2, 3] in arguments


async def test_bad_submission_fails_alone(postgres_url: str) -> None:
    """Of a group with one block that PostgreSQL refuses, the others are saved, and the connection stays."""
    async with open_postgres_store(postgres_url) as store:
        connection = store.saver.connection

        async def create(number: int) -> None:
            model = "Test\0GPU" if number == 4 else "Test GPU"
            gpu = GpuGroup(gpu_model=model, count=2, max_power_watts_per_gpu=125.25)
            async with store.transaction(f"j{number}") as tx:
                tx.save_job(a_job(f"j{number}", gpu=gpu))

        outcomes = await asyncio.gather(*(create(number) for number in range(8)), return_exceptions=True)
        assert [type(outcome) for outcome in outcomes if outcome is not None] == [StorageUnavailableError]
        assert isinstance(outcomes[4], StorageUnavailableError)
        saved = {each.job.spec.job_id for each in await store.reads.jobs(JobList(), 0, 10)}
        assert saved == {f"j{number}" for number in range(8) if number != 4}
        assert store.saver.connection is connection


async def test_texts_with_nul_equal_none(postgres_url: str) -> None:
    """A text that PostgreSQL could not store is looked for without success, like any other that there is not."""
    async with open_postgres_store(postgres_url) as store:
        await save_with_trial(store, "j")
        assert await job_of(store, "j\0") is None
        assert await store.reads.jobs(JobList("j\0"), 0, 10) == []
        assert await store.reads.trials(TrialList("\0"), (), 10) == []
        assert not await was_launch_deleted(store, "j\0", "\0", None)
        assert await store.reads.versions(["j", "j\0"]) == {"j": 1}
        async with store.transaction("j") as tx:
            assert await tx.trial_of_launch("launch\0") is None


async def test_infinite_costs_are_kept(postgres_url: str) -> None:
    """Costs that overflow are read as they were saved, beside numbers that are next to zero."""
    trial = a_trial(1, status=TrialStatus.DECIDED, end_reason=EndReason.MAX_EPOCHS, end_time=NOW, observation=1)
    trial = trial._replace(cost=math.inf, cost_bound=5e-324, last=Measurement(1, 5e-324, 1.7e308, -math.inf, NOW))
    async with open_postgres_store(postgres_url) as store, store.transaction("j") as tx:
        tx.save_job(with_trials(a_job(seed=2**63 - 1), 1))
        tx.save_trial(trial)
    async with open_postgres_store(postgres_url) as store, store.transaction("j") as tx:
        assert tx.job is not None
        assert tx.job.spec.seed == 2**63 - 1
        assert await tx.trial(1) == trial


async def test_room_is_shared(postgres_url: str) -> None:
    """Two servers that create jobs at once keep to a limit together."""

    @retried
    async def create(store: PostgresStore, number: int) -> None:
        async with store.transaction(f"j-{number}") as tx:
            await tx.make_room("j-", 5)
            await asyncio.sleep(0)
            tx.save_job(a_job(f"j-{number}"))

    async with two_stores(postgres_url) as stores:
        creating = (create(stores[number % 2], number) for number in range(20))
        outcomes = await asyncio.gather(*creating, return_exceptions=True)
        assert outcomes.count(None) == 5
        assert sum(isinstance(outcome, TooManyJobsError) for outcome in outcomes) == 15
        for store in stores:
            assert len(await store.reads.jobs(JobList("j-"), 0, 30)) == 5
            await look_for_room(store, "j-", 6)


async def test_lease_renewed_elsewhere_is_not_given_up(postgres_url: str) -> None:
    """A server that knows only the old lease conflicts when it gives up the trial, and then knows the new one."""
    async with two_stores(postgres_url) as (one, other):
        await save_with_trial(one, "j")
        async with one.transaction("j") as tx:
            tx.save_trial(a_trial(1, lease_expire_time=one.clock()))
        await refresh(other, "j")
        async with other.transaction("j") as tx:
            (trial,) = tx.running()
            tx.renew_lease(trial._replace(lease_expire_time=other.clock() + timedelta(hours=1)))
        assert await one.expired_leases() == await other.expired_leases() == []
        with pytest.raises(ConflictError):  # noqa: PT012 - the conflict is raised by the block's exit
            async with one.transaction("j") as tx:
                (trial,) = tx.running()
                assert tx.lease_expired(trial)
                tx.save_trial(trial._replace(status=TrialStatus.INTERRUPTED, end_reason=EndReason.LOST))
        async with one.transaction("j") as tx:
            (trial,) = tx.running()
            assert not tx.lease_expired(trial)


async def test_answer_rests_on_a_lease_that_has_expired(postgres_url: str) -> None:
    """A block that saves nothing ends in a conflict if the lease that it found expired was renewed elsewhere."""
    async with two_stores(postgres_url) as (one, other):
        await save_with_trial(one, "j")
        async with one.transaction("j") as tx:
            tx.save_trial(a_trial(1, lease_expire_time=one.clock()))
        async with one.transaction("j") as tx:
            assert tx.lease_expired(tx.running()[0])
        await refresh(other, "j")
        async with other.transaction("j") as tx:
            tx.renew_lease(tx.running()[0]._replace(lease_expire_time=other.clock() + timedelta(hours=1)))
        with pytest.raises(ConflictError):
            async with one.transaction("j") as tx:
                assert tx.lease_expired(tx.running()[0])


async def test_jobs_that_run_elsewhere_leave_the_cache(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server keeps no job for a trial that another server may long have ended."""
    monkeypatch.setattr("wattwise_server.store.transactions.CACHED_JOBS", 5)
    async with two_stores(postgres_url) as (one, _):
        for number in range(20):
            await save_with_trial(one, f"j{number}")
        assert len(one.cache) == 5
        async with one.transaction("j0") as tx:
            assert len(tx.running()) == 1


async def test_settings_of_a_role_do_not_apply(postgres_server: PostgresServer, postgres_url: str) -> None:
    """Neither the isolation nor the limit for locks of a database disturbs how servers wait for each other."""
    name = postgres_url.rpartition("/")[2]
    postgres_server.execute(f"ALTER DATABASE {name} SET default_transaction_isolation = 'serializable'")
    postgres_server.execute(f"ALTER DATABASE {name} SET lock_timeout = '1ms'")
    async with AsyncExitStack() as stack:
        opened = [stack.enter_async_context(open_postgres_store(postgres_url)) for _ in range(4)]
        stores = await asyncio.gather(*opened)

        async def create(number: int) -> None:
            await save_with_trial(stores[number % 4], f"j-{number}")

        await asyncio.gather(*map(create, range(40)))
        for number in range(40):
            job = await job_of(stores[0], f"j-{number}")
            assert job is not None
        rounds = 5

        @retried
        async def count(store: PostgresStore) -> None:
            async with store.transaction("j-0") as tx:
                assert tx.job is not None
                tx.save_job(replace(tx.job, num_observations=tx.job.num_observations + 1))

        for _ in range(rounds):
            await asyncio.gather(*map(count, stores))
        job = await job_of(stores[0], "j-0")
        assert job is not None
        assert job.num_observations == rounds * len(stores)


async def test_expired_lease_goes_to_one_server(postgres_server: PostgresServer) -> None:
    """Each expired trial is given up by one of the servers; by another one if it has not done so for two seconds."""
    url = postgres_server.create_database()
    async with two_stores(url) as stores:
        await save_with_leases(stores[0], "j", 150)
        postgres_server.execute("UPDATE leases SET expires = expires - 3700000000", url.rpartition("/")[2])
        swept = await asyncio.gather(*(stores[number % 2].expired_leases() for number in range(4)))
        assert max(map(len, swept)) <= 100
        assert sorted(key.trial_number for keys in swept for key in keys) == list(range(1, 151))
        postgres_server.execute("UPDATE leases SET claimed = claimed - 2000000", url.rpartition("/")[2])
        assert len(await stores[1].expired_leases()) == 100


async def test_servers_that_start_at_once_migrate_once(postgres_server: PostgresServer) -> None:
    """Eight servers on an empty database: all serve it, with one schema and one key for page tokens."""
    url = postgres_server.create_database()
    async with AsyncExitStack() as stack:
        opened = [stack.enter_async_context(open_postgres_store(url)) for _ in range(8)]
        stores = await asyncio.gather(*opened)
        for store in stores:
            store.check()
        assert len({store.page_token_key for store in stores}) == 1
        await save_with_trial(stores[0], "j")
        assert [await store.reads.content() for store in stores] == [(1, 1)] * 8
    versions = "SELECT version, min_reader_version FROM wattwise_schema"
    assert len(postgres_server.execute(versions, url.rpartition("/")[2])) == 1


async def test_schema_of_a_newer_program_is_refused(
    postgres_server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server does not start on it, and one that runs says that it cannot serve, until the schema is as before."""
    monkeypatch.setattr("wattwise_server.store.postgres.open._SCHEMA_SECONDS", 0.05)
    url = postgres_server.create_database()
    database = url.rpartition("/")[2]

    async def looked(store: PostgresStore, unusable: bool) -> None:
        while bool(store.reads.unusable) is not unusable:  # noqa: ASYNC110 - the store tells nobody
            await asyncio.sleep(0.02)

    async with open_postgres_store(url) as store:
        store.check()
        postgres_server.execute("UPDATE wattwise_schema SET version = 99, min_reader_version = 99", database)
        await asyncio.wait_for(looked(store, unusable=True), 20)
        for call in (store.reads.jobs(JobList(), 0, 1), store.reads.trials(TrialList("j"), (), 1), observe(store, 1)):
            with pytest.raises(StorageUnavailableError, match="99"):
                await call
        with pytest.raises(StorageUnavailableError):
            store.check()
        with pytest.raises(StartError, match="99"):
            async with open_postgres_store(url):
                pass
        postgres_server.execute("UPDATE wattwise_schema SET min_reader_version = 1", database)
        await asyncio.wait_for(looked(store, unusable=False), 20)
        store.check()
        # Additions of a newer program do not keep this one away.
        async with open_postgres_store(url) as second:
            second.check()


@pytest.mark.parametrize("lost", [False, True])
async def test_change_reaches_subscribers_of_other_servers(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch, lost: bool
) -> None:
    """By a notice alone, or without notices by the next poll, although it happened before the first one."""
    if not lost:
        monkeypatch.setattr("wattwise_server.store.postgres.notices._POLL_SECONDS", 3600.0)
    async with two_stores(postgres_url) as (one, other):
        await save_with_trial(one, "j")
        notices = notices_of(other)
        while notices.heard != 1:  # noqa: ASYNC110 - until both listen, and have polled
            await asyncio.sleep(0.01)
        if lost:
            assert notices.connection is not None
            await notices.connection.execute("UNLISTEN *")
        with other.subscribe("j") as job, other.subscribe("j", 1) as trial:
            async with one.transaction("j") as tx:
                assert tx.job is not None
                tx.save_job(replace(tx.job, num_observations=1))
                tx.save_trial(a_trial(1, excluded=True))
            await asyncio.wait_for(asyncio.gather(job.wait(), trial.wait()), 20)


async def test_notices_at_the_same_moment_are_all_sent(postgres_url: str) -> None:
    """Several that are sent while one is under way reach the other server, over a connection that stays."""
    async with two_stores(postgres_url) as (one, other):
        notices = notices_of(one)
        connection = notices.connection
        with contextlib.ExitStack() as stack:
            followed = [stack.enter_context(other.subscribe(f"j{number}")) for number in range(5)]
            for number in range(5):
                notices.publish(Notice(f"j{number}", 1, job=True, numbers=()))
                await asyncio.gather(notices.ping(), notices.ping())
            await asyncio.wait_for(asyncio.gather(*(each.wait() for each in followed)), 20)
        assert notices.connection is connection
        assert connection is not None
        assert not connection.is_closed()


@pytest.mark.parametrize("first", [False, True])
async def test_host_that_is_down_is_passed_over(postgres_server: PostgresServer, first: bool) -> None:
    """Of several hosts in a URL the one that answers is used, wherever it stands."""
    database = postgres_server.create_database().rpartition("/")[2]
    with hold_port() as held:
        hosts = [f"127.0.0.1:{port_of(held)}", postgres_server.host]
        if first:
            hosts.reverse()
        async with open_postgres_store(f"postgresql://postgres@{','.join(hosts)}/{database}") as store:
            await save_with_trial(store, "j")
            assert await store.reads.content() == (1, 1)


async def test_poll_knows_what_this_server_has_changed_itself(postgres_url: str) -> None:
    """Followers of a busy job are not woken by its own server's reports."""
    async with two_stores(postgres_url) as (one, _):
        await save_with_trial(one, "j")
        with one.subscribe("j", 2) as changes:
            await notices_of(one).poll()
            async with one.transaction("j") as tx:
                assert tx.job is not None
                tx.save_job(replace(tx.job, num_observations=1))
            await notices_of(one).poll()
            waiting = asyncio.ensure_future(changes.wait())
            await asyncio.sleep(0)
            assert not waiting.done()
            waiting.cancel()
