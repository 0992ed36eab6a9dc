"""Several servers on one PostgreSQL, which the load uses as if they were one, and audits of what is stored there."""

from __future__ import annotations

import asyncio
import itertools
import random
import signal
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from wattwise import v1
from wattwise_server.store.copying import TABLES
from wattwise_server.store.postgres.connecting import Connector
from wattwise_server.store.postgres.copying import PostgresCopy
from wattwise_server.store.sqlite.copying import open_target

from tests.faults.audit import check_file, check_replay
from tests.faults.ledger import Ledger
from tests.live_server import LiveServer

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
    def admin(self) -> v1.JobAdminStub:
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
            assert "Traceback" not in server.log.read_text()
        return replayed

    def num_lost(self) -> int:
        """How many trials were ever given up because their lease had expired."""
        with closing(sqlite3.connect(self._snapshot())) as connection:
            tables = ("trials", "events")
            counts = [f"(SELECT count(*) FROM {table} WHERE end_reason = 'LOST')" for table in tables]  # noqa: S608
            return int(connection.execute(f"SELECT {' + '.join(counts)}").fetchone()[0])

    def _snapshot(self) -> Path:
        """The database as a server's file."""
        path = self._folder / f"snapshot-{next(self._audits)}.db"
        asyncio.run(_copy(self._url, path))
        return path


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
            for table in TABLES:
                columns = sorted(await source.columns(table))
                async for rows in source.rows(table, columns):
                    await target.write(table, columns, rows)
            await target.finish(await source.highest_key())
    finally:
        await connection.close()
