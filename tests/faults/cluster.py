"""Several servers on one PostgreSQL, which the load uses as if they were one, and audits of what is stored there."""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import signal
import sqlite3
import sys
import threading
import uuid
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
from wattwise import v1
from wattwise_server.store.postgres.connecting import Connector
from wattwise_server.store.postgres.copying import PostgresCopy
from wattwise_server.store.sqlite.copying import open_target
from wattwise_server.store.tables import TABLES

from tests.faults.audit import check_file, check_replay
from tests.faults.ledger import JobBook, Ledger, SentReport, TrialBook
from tests.faults.load import Load, insist
from tests.faults.test_kills import check_requests
from tests.jobs import Trainer
from tests.live_server import LiveServer
from tests.people import PeopleStub
from tests.postgres import PostgresServer
from tests.refusals import refused
from tests.stalling_proxy import StallingProxy

if TYPE_CHECKING:
    from typing_extensions import Self

_MOVES = 0.2
"""How often a caller takes another server for its next call."""


class Cluster:
    """Servers that run on one database; every thread calls one of them, and another one after a while.

    Attributes:
        servers: The servers.
        answering: Those that are called.
    """

    def __init__(self, folder: Path, *urls: str) -> None:
        """Starts nothing yet.

        Args:
            folder: For the logs.
            urls: The database's, as each server reaches it; the last one is used for audits, too.
        """
        self._folder = folder
        self._url = urls[-1]
        self._audits = itertools.count()
        self._current = threading.local()
        self.servers = [LiveServer(_made(folder / f"server-{number}"), url) for number, url in enumerate(urls)]
        self.answering: Sequence[LiveServer] = self.servers

    def __enter__(self) -> Self:
        for server in self.servers:
            server.start()
            # Made by one thread, before many use it.
            assert server.channel
        return self

    def __exit__(self, *_error: object) -> None:
        for server in self.servers:
            server.close()

    @property
    def trainer(self) -> v1.BatchSizeOptimizerStub:
        """The stub of the calling thread's server."""
        return self._some.trainer

    @property
    def admin(self) -> PeopleStub:
        """The stub of the calling thread's server."""
        return self._some.admin

    @property
    def _some(self) -> LiveServer:
        current: LiveServer = getattr(self._current, "server", self.servers[0])
        if current not in self.answering or random.random() < _MOVES:
            current = self._current.server = random.choice(self.answering)
        return current

    @contextmanager
    def without(self, server: LiveServer) -> Iterator[None]:
        """Calls no more on a server that would not answer."""
        self.answering = [other for other in self.servers if other is not server]
        try:
            yield
        finally:
            self.answering = self.servers

    @contextmanager
    def suspended(self, server: LiveServer) -> Iterator[None]:
        """Stops the clock of a server."""
        with self.without(server):
            server.process.send_signal(signal.SIGSTOP)
            try:
                yield
            finally:
                server.process.send_signal(signal.SIGCONT)

    def check(self, ledger: Ledger) -> None:
        """Compares what is stored with the ledger; no call may be under way."""
        check_file(self._snapshot(), ledger)

    def check_at_end(self, ledger: Ledger) -> int:
        """Compares what is stored with the ledger and with a replay; returns how many calls were replayed."""
        database = self._snapshot()
        check_file(database, ledger)
        replayed = check_replay(database, ledger)
        for server in self.servers:
            _, found, rest = server.log.read_text().partition("Traceback")
            assert not found, rest[:5000]
        return replayed

    def num_lost(self) -> int:
        """How many trials were ever given up because their lease had expired."""
        with closing(sqlite3.connect(self._snapshot())) as connection:
            tables = ("trials", "search_events")
            counts = [f"(SELECT count(*) FROM {table} WHERE end_reason = 'LOST')" for table in tables]  # noqa: S608
            return int(connection.execute(f"SELECT {' + '.join(counts)}").fetchone()[0])

    def _snapshot(self) -> Path:
        """The database as a server's file."""
        path = self._folder / f"snapshot-{next(self._audits)}.db"
        asyncio.run(_copy(self._url, path))
        return path


@contextmanager
def through_proxy(folder: Path, postgres: PostgresServer, others: int = 2) -> Iterator[tuple[StallingProxy, Cluster]]:
    """Servers, of which the first one reaches the database through a proxy."""
    url = postgres.create_database()
    with StallingProxy(postgres.port) as proxy:
        first = url.replace(postgres.host, f"127.0.0.1:{proxy.port}")
        with Cluster(folder, first, *[url] * others) as servers:
            yield proxy, servers


def make_load(cluster: Cluster, workers: int = 12, impatience: float = 0.2) -> tuple[Load, random.Random]:
    """A load, and a generator for what happens to it."""
    seed = int(os.environ.get("KILL_SEED", random.SystemRandom().randrange(10**6)))
    sys.stdout.write(f"KILL_SEED={seed} repeats what can be repeated of this run\n")
    return Load(cluster, seed, workers, jobs=6, impatience=impatience), random.Random(seed)


def audit(cluster: Cluster, load: Load, rng: random.Random) -> None:
    """Compares what is stored with the ledger while the callers wait."""
    load.gate.shut()
    load.gate.wait_empty()
    cluster.check(load.ledger)
    check_requests(cluster, load, rng)
    load.gate.open()


class Pupil(Trainer):
    """A job with one trial, in a load's ledger."""

    def __init__(self, load: Load, stub: v1.BatchSizeOptimizerStub, **fields: Any) -> None:
        super().__init__(stub, **fields)
        self.book = load.ledger.jobs[self.job_id] = JobBook(self.spec, mixed=True, registered=True)
        self.trial = self.next("first")
        self.trial_book = self.book.requests["first"] = TrialBook(self.trial)

    def insist(self) -> v1.Decision:
        """Renews the lease, as soon as that is possible."""
        return insist(lambda: self.heartbeat(self.trial))

    def report_until(self, code: grpc.StatusCode) -> None:
        """Reports epochs until one is refused."""
        reports = self.trial_book.reports
        with refused() as refusal:
            for epoch in range(1, 10**5):
                sent = reports[epoch] = SentReport(float(epoch), float(epoch), 0.1)
                sent.decision = self.report(self.trial, sent.energy, sent.metric, epoch, sent.time)
        assert refusal.code is code

    def check_refused(self, servers: Sequence[LiveServer]) -> None:
        """Every server refuses to read and to write, and says when to try again."""
        for server in servers:
            launch_id = str(uuid.uuid4())
            # Should it arrive after all, it may be stored.
            self.book.requests[launch_id] = None
            write = v1.GetNextBatchSizeRequest(job_id=self.job_id, launch_id=launch_id)
            calls = (
                partial(server.trainer.GetNextBatchSize, write, timeout=30),
                partial(server.admin.GetJob, v1.GetJobRequest(job_id=self.job_id), timeout=30),
                partial(server.admin.ListTrials, v1.ListTrialsRequest(job_id=self.job_id), timeout=30),
            )
            for call in calls:
                with refused() as refusal:
                    call()
                assert refusal.code is grpc.StatusCode.UNAVAILABLE
                assert refusal.reason == "ERROR_REASON_STORAGE_UNAVAILABLE"
                assert refusal.metadata["retryable"] == "true"
                assert refusal.retry_seconds


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


async def _copy(url: str, path: Path) -> None:
    connection = await Connector(url, url).connect()
    try:
        async with (
            connection.transaction(isolation="repeatable_read", readonly=True),
            open_target(f"sqlite:///{path}") as target,
        ):
            source = PostgresCopy(url, connection)
            for table in (each.name for each in TABLES):
                columns = sorted(await source.columns(table))
                async for rows in source.rows(table, columns):
                    await target.write(table, columns, rows)
            await target.finish(await source.highest_key())
    finally:
        await connection.close()
