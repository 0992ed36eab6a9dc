"""What servers tell each other: which jobs have changed, so that caches are read again and streams get their stops.

A notice is sent after the commit, on a connection of its own: inside the transaction it would take a lock of the whole
database across the flush. A notice may be lost. So the versions of all followed jobs are also compared
regularly: every second, or every few seconds while notices arrive.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from time import monotonic
from typing import Any, NamedTuple, Protocol

from wattwise_server.errors import ServiceError
from wattwise_server.observability.logs import log_event, log_exception
from wattwise_server.store.postgres.connecting import Connection, Connector, hang_up
from wattwise_server.store.postgres.failures import ERRORS, may_be_terminated

log = logging.getLogger(__name__)

_CHANNEL = "wattwise"
_GATHER_SECONDS = 0.003
"""The first notice is sent at once, further ones wait for each other."""

_LARGEST_PAYLOAD = 7_900
"""PostgreSQL's limit is 8,000 bytes."""

_MOST_NUMBERS = 50
"""Trials in one notice; of more, all of the job's streams look."""

_POLL_SECONDS = 1.0
_POLLS_WITH_NOTICES = 5
_ANSWER_SECONDS = 5.0
_SILENCE_SECONDS = 2.5
"""Every server sends something each second."""

_FORGET_SECONDS = 60.0


class Notice(NamedTuple):
    """What changed about a job.

    Attributes:
        job_id: The job.
        version: Its version since.
        job: Whether those that watch the job want to know.
        numbers: Trials that started, ended or were revived; None: unknown.
    """

    job_id: str
    version: int
    job: bool
    numbers: Sequence[int] | None


class Listener(Protocol):
    """What learns of changes."""

    def notice(self, notice: Notice) -> None:
        """Notes that another server has changed a job."""

    def followed(self) -> Mapping[str, int | None]:
        """Returns the followed jobs, with the version that this server knows of each; None: it knows none."""

    def missed_notices(self) -> None:
        """Notices about any job may have been lost."""


class Notices:
    """Sends and receives notices, and polls.

    A server that does not hear one of the others polls every second: that one may be unable to send.

    Attributes:
        listener: What learns of changes.
        connection: The connection that sends and receives; None before the first one.
        lock: Held by a statement: a connection runs one at a time.
        unsent: The notices that are not sent yet, by job.
        sending: The task that sends them; None if all are sent, or if there is no connection.
        pinged: The number of the newest message to itself.
        heard: The number of the newest of these messages that has arrived.
    """

    def __init__(
        self,
        connector: Connector,
        server: int,
        listener: Listener,
        versions: Callable[[Sequence[str]], Any],
        others: Callable[[], Collection[int]],
    ) -> None:
        """Connects later.

        Args:
            connector: Of the database.
            server: The number of this server.
            listener: What learns of changes.
            versions: A coroutine function that reads the versions of jobs.
            others: The other servers that use the database.
        """
        self._connector = connector
        self._server = server
        self.listener = listener
        self._versions = versions
        self._others = others
        self.connection: Connection | None = None
        self.lock = asyncio.Lock()
        self.unsent: dict[str, Notice] = {}
        self.sending: asyncio.Task[None] | None = None
        self._looks, self.pinged, self.heard = 0, 0, 0
        self._heard_others: dict[int, float] = {}
        self._known: dict[str, int] = {}

    @property
    def alone(self) -> bool:
        """Whether no other server uses the database; one that has just started is heard before it is counted."""
        return not (self._heard_others or self._others())

    def publish(self, notice: Notice) -> None:
        """Tells the other servers, soon."""
        self._keep(notice)
        if self.sending is None:
            self.sending = asyncio.create_task(self._send())

    def _keep(self, notice: Notice) -> None:
        before = self.unsent.get(notice.job_id)
        if before is not None:
            numbers = None
            if before.numbers is not None and notice.numbers is not None:
                numbers = sorted({*before.numbers, *notice.numbers})
            notice = Notice(notice.job_id, notice.version, before.job or notice.job, numbers)
        if notice.numbers is not None and len(notice.numbers) > _MOST_NUMBERS:
            notice = notice._replace(numbers=None)
        self.unsent[notice.job_id] = notice

    async def follow(self) -> None:
        """Listens and polls until it is cancelled."""
        try:
            while True:
                try:
                    await self._look()
                except Exception as error:  # noqa: BLE001 - without this, caches and streams would learn of nothing more
                    log_exception(log, "maintenance failed", error, work="follow the database")
                await asyncio.sleep(_POLL_SECONDS)
        finally:
            if self.sending is not None:
                self.sending.cancel()
            if self.connection is not None:
                await hang_up(self.connection)

    def connect_again(self) -> None:
        """Lets the next look connect to the host that takes writes."""
        if self.connection is not None:
            self.connection.terminate()

    async def _look(self) -> None:
        await self._connect()
        self._looks += 1
        earliest = monotonic() - _FORGET_SECONDS
        self._heard_others = {server: heard for server, heard in self._heard_others.items() if heard > earliest}
        misses = self.heard != self.pinged or self._misses_one()
        if misses or self._looks % _POLLS_WITH_NOTICES == 0:
            await self.poll()
        if misses:
            self.listener.missed_notices()
        await self.ping()

    def _misses_one(self) -> bool:
        earliest = monotonic() - _SILENCE_SECONDS
        return any(self._heard_others.get(server, -math.inf) < earliest for server in self._others())

    async def _connect(self) -> None:
        if self.connection is not None and not self.connection.is_closed():
            return
        self.heard = -1
        try:
            # A lost notice is made up for by the poll: it need not be durable.
            settings = {"synchronous_commit": "off"}
            async with self.lock:
                self.connection = await self._connector.connect(settings, command_timeout=_ANSWER_SECONDS)
                with may_be_terminated(self.connection):
                    await self.connection.add_listener(_CHANNEL, self._receive)
        except ERRORS:
            # The writing connection tells what is wrong.
            if self.connection is not None:
                self.connection.terminate()
            return
        if self.unsent and self.sending is None:
            self.sending = asyncio.create_task(self._send())

    async def poll(self) -> None:
        """Reads which of the followed jobs other servers have changed."""
        followed = sorted(self.listener.followed())
        try:
            found = await self._versions(followed) if followed else {}
        except ServiceError:
            return
        # Since the question this server may have made newer versions itself.
        ours = self.listener.followed()
        for job_id in followed:
            version, known = found.get(job_id, 0), ours.get(job_id)
            if known is None:
                # A job that is followed since the last poll may have changed before this one.
                changed = self._known.get(job_id) != version
            else:
                changed = version > known or (version == 0 and known > 0)
            if changed:
                self.listener.notice(Notice(job_id, version, job=True, numbers=None))
        self._known = {job_id: found.get(job_id, 0) for job_id in followed}

    async def ping(self) -> None:
        """Sends a message that this server hears if notices arrive."""
        self.pinged += 1
        await self._notify(json.dumps([self._server, self.pinged]))

    async def _send(self) -> None:
        try:
            while self.unsent:
                sent, self.unsent = self.unsent, {}
                for payload in _payloads(self._server, sent.values()):
                    if not await self._notify(payload):
                        # Sent when there is a connection; a notice may come twice.
                        later, self.unsent = self.unsent, sent
                        for notice in later.values():
                            self._keep(notice)
                        return
                await asyncio.sleep(_GATHER_SECONDS)
        finally:
            self.sending = None

    async def _notify(self, payload: str) -> bool:
        async with self.lock:
            connection = self.connection
            if connection is None or connection.is_closed():
                return False
            try:
                with may_be_terminated(connection):
                    await connection.execute("SELECT pg_notify($1, $2)", _CHANNEL, payload)
            except ERRORS:
                # The other servers poll.
                connection.terminate()
                return False
            return True

    def _receive(self, _connection: object, _process: int, _channel: str, payload: object) -> None:
        try:
            server, *rest = json.loads(str(payload))
            if server == self._server:
                if rest and isinstance(rest[0], int):
                    self.heard = rest[0]
                return
            self._heard_others[server] = monotonic()
            for each in rest:
                if isinstance(each, list):
                    self.listener.notice(Notice(*each))
        except (ValueError, TypeError) as error:
            # Anybody who may connect to the database may send on the channel.
            log_event(log, logging.WARNING, "notice not understood", cause=str(error))
        except Exception as error:  # noqa: BLE001 - asyncpg would end the connection
            log_exception(log, "notice failed", error)


def _payloads(server: int, notices: Iterable[Notice]) -> Iterable[str]:
    """Yields all notices, in as few messages as possible."""
    head, parts, size = f"[{server}", list[str](), 0
    for notice in notices:
        part = json.dumps(notice)
        if parts and size + len(part) > _LARGEST_PAYLOAD - len(head) - 1:
            yield f"{head},{','.join(parts)}]"
            parts, size = [], 0
        parts.append(part)
        size += len(part) + 1
    if parts:
        yield f"{head},{','.join(parts)}]"
