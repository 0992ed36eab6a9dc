"""What a server learns of the changes that others make: by notices, and by polling when those are lost."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager
from typing import Any

import asyncpg
import pytest
from wattwise.rules import EndReason, TrialStatus
from wattwise_server.store.postgres import notices
from wattwise_server.store.postgres.backend import PostgresStore
from wattwise_server.store.subscriptions import Subscription

from tests.postgres import PostgresServer
from tests.server.store.conformance import a_job, a_trial, save_with_trial, with_trials
from tests.server.store.two_stores import open_postgres_store, refresh, two_stores
from tests.stalling_proxy import StallingProxy


async def until(fact: Callable[[], bool]) -> None:
    """Returns once a fact holds."""

    async def look() -> None:
        while not fact():  # noqa: ASYNC110 - nobody is told of it
            await asyncio.sleep(0.005)

    await asyncio.wait_for(look(), 20)


def hears(store: PostgresStore) -> bool:
    """Whether a store has received its own newest notice."""
    sent = store.notices
    assert isinstance(sent, notices.Notices)
    return sent.pinged > 0 and sent.heard == sent.pinged


@asynccontextmanager
async def listening(url: str) -> AsyncIterator[tuple[PostgresStore, PostgresStore]]:
    """Two stores that know of each other and listen."""
    async with two_stores(url) as stores:
        for store in stores:
            await until(lambda store=store: hears(store))  # type: ignore[misc]
        yield stores


@pytest.fixture
def no_poll(monkeypatch: pytest.MonkeyPatch) -> None:
    """After the first poll there is none for an hour."""
    monkeypatch.setattr(notices, "_POLL_SECONDS", 3600.0)


@pytest.fixture
def quick_poll(monkeypatch: pytest.MonkeyPatch) -> None:
    """Polls follow each other quickly while notices are lost, and never while they arrive."""
    monkeypatch.setattr(notices, "_POLL_SECONDS", 0.05)
    monkeypatch.setattr(notices, "_POLLS_WITH_NOTICES", 10**9)


async def wakes(*subscriptions: Subscription) -> None:
    """Returns once each subscription was notified."""
    await asyncio.wait_for(asyncio.gather(*(each.wait() for each in subscriptions)), 20)


@pytest.mark.usefixtures("no_poll")
async def test_notice_wakes_those_whom_it_concerns(postgres_url: str) -> None:
    """A change at one server wakes subscriptions to the job and to its trial at the other one, and no others."""
    async with listening(postgres_url) as (first, second):
        await save_with_trial(second, "j")
        await save_with_trial(second, "other")
        with ExitStack() as stack:
            job, one, two, other = (
                stack.enter_context(second.subscribe(*topic)) for topic in (("j",), ("j", 1), ("j", 2), ("other",))
            )
            async with first.transaction("j") as tx:
                assert tx.job is not None
                tx.save_job(with_trials(tx.job, 2))
                tx.save_trial(a_trial(1, status=TrialStatus.FAILED, end_reason=EndReason.ERROR))
            await wakes(job, one)
            async with first.transaction("j") as tx:
                tx.save_trial(a_trial(2))
            await wakes(two)
            others = [asyncio.create_task(each.wait()) for each in (job, one, other)]
            await asyncio.sleep(0)
            assert not any(other.done() for other in others)
            for waiting in others:
                waiting.cancel()
        async with second.transaction("j") as tx:
            assert [trial.number for trial in tx.running()] == [2]


@pytest.mark.usefixtures("no_poll")
async def test_notice_lets_a_job_be_read_again(postgres_url: str) -> None:
    """After a notice a server's next block sees the change, and ends in no conflict; so with a deletion."""
    async with listening(postgres_url) as (first, second):
        await save_with_trial(first, "j")
        await refresh(second, "j")
        with second.subscribe("j") as changes:
            async with first.transaction("j") as tx:
                tx.save_job(with_trials(a_job(), 2))
            await wakes(changes)
            async with second.transaction("j") as tx:
                assert tx.job is not None
                assert tx.job.num_trials == 2
            async with first.transaction("j") as tx:
                tx.delete_job()
            await wakes(changes)
            async with second.transaction("j") as tx:
                assert tx.job is None


@pytest.mark.usefixtures("no_poll")
async def test_many_changes_fit_into_messages(postgres_url: str) -> None:
    """Jobs with long ids that change in one moment, and a job with many trials, are all told of."""
    ids = [f"{'é' * 90}-{number}" for number in range(60)]
    async with listening(postgres_url) as (first, second):
        with ExitStack() as stack:
            jobs = [stack.enter_context(second.subscribe(job_id)) for job_id in ids]
            trial = stack.enter_context(second.subscribe("wide", 200))
            await asyncio.gather(*(save_with_trial(first, job_id) for job_id in ids))
            async with first.transaction("wide") as tx:
                tx.save_job(with_trials(a_job("wide"), 200))
                for number in range(1, 201):
                    tx.save_trial(a_trial(number, "wide"))
            await wakes(*jobs, trial)


@pytest.mark.usefixtures("quick_poll")
async def test_lost_notice_is_made_up_for(postgres_server: PostgresServer, postgres_url: str) -> None:
    """What changes while a server is cut off wakes its subscriptions once it is connected again."""
    with StallingProxy(postgres_server.port) as proxy:
        cut_off = postgres_url.replace(postgres_server.host, f"127.0.0.1:{proxy.port}")
        async with open_postgres_store(cut_off) as second, open_postgres_store(postgres_url) as first:
            await save_with_trial(first, "j")
            listener, sender = second.notices, first.notices
            assert isinstance(listener, notices.Notices)
            assert isinstance(sender, notices.Notices)
            await until(lambda: hears(second) and hears(first))
            with second.subscribe("j") as job, second.subscribe("j", 1) as trial:
                lost = listener.connection
                assert lost is not None
                proxy.refuse()
                proxy.cut()
                await until(lost.is_closed)
                async with first.transaction("j") as tx:
                    tx.save_job(with_trials(a_job(), 2))
                    tx.save_trial(a_trial(1, excluded=True))
                await until(lambda: sender.sending is None)
                proxy.accept()
                await wakes(job, trial)
                # Notices arrive again.
                await until(lambda: listener.connection is not lost and hears(second))
                async with first.transaction("j") as tx:
                    tx.save_trial(a_trial(1))
                await wakes(trial)


@pytest.mark.usefixtures("quick_poll")
async def test_server_that_cannot_send_is_polled(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that does not hear another one polls, although its own notices arrive."""

    async def stays_alone(_self: notices.Notices) -> None:
        """Connects to nothing."""

    async with listening(postgres_url) as (first, second):
        sender = first.notices
        assert isinstance(sender, notices.Notices)
        assert sender.connection is not None
        monkeypatch.setattr(notices, "_SILENCE_SECONDS", 0.2)
        monkeypatch.setattr(sender, "_connect", stays_alone.__get__(sender))
        sender.connection.terminate()
        await save_with_trial(first, "j")
        with second.subscribe("j", 1) as trial:
            await refresh(second, "j")
            await wakes(trial)
            async with first.transaction("j") as tx:
                tx.save_trial(a_trial(1, excluded=True))
            await wakes(trial)
            await until(lambda: hears(second))


@pytest.mark.usefixtures("no_poll")
async def test_messages_of_others_do_no_harm(
    postgres_server: PostgresServer, postgres_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Anybody who may connect may send on the channel: what is not understood is logged, and notices go on."""
    caplog.set_level(logging.WARNING)
    garbage = [
        "",
        "x",
        "5",
        "{}",
        "[]",
        "[1, [2]]",
        '[1, ["j", "x", true, null]]',
        '[1, ["j", 1, true, [[1]]]]',
        '[1, [["j"], 1, true, [1]]]',
        '[1, ["j", 1, true, 7]]',
        "[" * 3000,
    ]
    async with listening(postgres_url) as (first, second):
        await save_with_trial(first, "j")
        await refresh(second, "j")
        with second.subscribe("j") as changes:
            for text in garbage:
                quoted = text.replace("'", "''")
                postgres_server.execute(f"SELECT pg_notify('wattwise', '{quoted}')", postgres_url)
            postgres_server.execute(
                f"SELECT pg_notify('wattwise', '{json.dumps([1, ['j', 99, True, [1]]])}')", postgres_url
            )
            await wakes(changes)
            async with first.transaction("j") as tx:
                tx.save_job(with_trials(a_job(), 2))
            await wakes(changes)
        async with second.transaction("j") as tx:
            assert tx.job is not None
            assert tx.job.num_trials == 2
    assert caplog.messages.count("notice not understood") >= 2 * (len(garbage) - 4)


async def test_lone_server_sends_nothing(postgres_url: str) -> None:
    """A server that is alone spares the database its notices."""
    async with open_postgres_store(postgres_url) as store:
        await save_with_trial(store, "j")
        assert isinstance(store.notices, notices.Notices)
        assert not store.notices.unsent


async def test_defect_does_not_end_the_polls(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A poll that fails for a reason that nobody foresaw is logged, and the next one follows."""
    monkeypatch.setattr(notices, "_POLL_SECONDS", 0.01)
    monkeypatch.setattr(notices, "_POLLS_WITH_NOTICES", 1)

    class Faulty:
        polls = 0

        def notice(self, notice: notices.Notice) -> None:
            """Not called: nothing is followed."""

        def missed_notices(self) -> None:
            """Not of interest."""

        def followed(self) -> dict[str, int | None]:
            self.polls += 1
            if self.polls == 1:
                raise RuntimeError("a defect")
            return {}

    faulty = Faulty()
    async with open_postgres_store(postgres_url) as store:
        assert isinstance(store.notices, notices.Notices)
        store.notices.listener = faulty
        await until(lambda: faulty.polls > 1)
    assert "maintenance failed" in caplog.messages


@pytest.mark.usefixtures("no_poll")
async def test_lost_notice_is_made_up_for_when_a_later_one_arrives(postgres_url: str) -> None:
    """A server that reads a job again because of a notice also wakes those whose notice came before and was lost."""
    async with listening(postgres_url) as (first, second):
        await save_with_trial(second, "j")
        with second.subscribe("j", 1) as stream, second.subscribe("j", 2) as other:
            await refresh(first, "j")
            notifier, first.notices = first.notices, None
            async with first.transaction("j") as tx:
                tx.save_trial(a_trial(1, status=TrialStatus.FAILED, end_reason=EndReason.ERROR))
            first.notices = notifier
            async with first.transaction("j") as tx:
                assert tx.job is not None
                tx.save_job(with_trials(tx.job, 2))
                tx.save_trial(a_trial(2))
            await wakes(other)
            await refresh(second, "j")
            await wakes(stream)


async def test_all_connections_follow_the_writing_one(postgres_server: PostgresServer, postgres_url: str) -> None:
    """When the writing connection was replaced, so are those that read and listen: it may lead to another host."""
    async with listening(postgres_url) as (store, _):
        sent, saver = store.notices, store.saver
        assert isinstance(sent, notices.Notices)

        async def backends() -> set[int]:
            assert sent.connection is not None
            assert saver.connection is not None
            reading = await store.reads.pool.fetchval("SELECT pg_backend_pid()")
            return {int(reading), sent.connection.get_server_pid(), saver.connection.get_server_pid()}

        before, listener = await backends(), sent.connection
        assert saver.connection is not None
        postgres_server.execute(f"SELECT pg_terminate_backend({saver.connection.get_server_pid()})")
        await until(lambda: saver.connection is None)
        await until(lambda: saver.connection is not None and sent.connection is not listener and hears(store))
        assert before.isdisjoint(await backends())


async def test_connection_that_ends_between_the_messages_of_a_notice(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """When the host that takes writes changes while a notice is sent, the next look connects again; nothing fails."""
    async with listening(postgres_url) as (first, second):
        sent = first.notices
        assert isinstance(sent, notices.Notices)
        real, ended = vars(asyncpg.Connection)["_get_statement"], asyncio.Event()

        async def prepared(connection: asyncpg.Connection, *args: Any, **options: Any) -> object:
            statement = await real(connection, *args, **options)
            if connection is sent.connection and not ended.is_set():
                ended.set()
                sent.connect_again()
            return statement

        monkeypatch.setattr(asyncpg.Connection, "_get_statement", prepared)
        await asyncio.wait_for(ended.wait(), 20)
        before = sent.pinged
        await until(lambda: sent.pinged > before + 1 and hears(first) and hears(second))
        assert not [record for record in caplog.records if record.exc_info]
