"""The writing connection: groups of changes in one commit, and what becomes of a commit when the connection is lost.

A group is one call, in a transaction of its own, so that a server that stops or stalls never holds a lock between two
calls. It compares the version of every job of the group; if one has moved it changes nothing, and the group is sent
again without that job.

When the connection is lost during a commit, it is in doubt whether the group was saved. The next connection asks
whether the newest version of one of its jobs is from this group, in a way that waits for a commit that is still under
way. A commit that waits for a standby goes on after its connection is lost. It is never cancelled, and nothing else is
sent until it has ended: every try would leave another one behind.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Collection, Sequence
from time import monotonic, perf_counter
from typing import TypeVar, cast

import asyncpg

from wattwise_server.clock import elapsed_micros
from wattwise_server.observability.logs import log_event, log_exception
from wattwise_server.observability.observers import Observer
from wattwise_server.store.postgres.clock import DatabaseClock
from wattwise_server.store.postgres.connecting import Connection, Connector, hang_up
from wattwise_server.store.postgres.failures import (
    ERRORS,
    DatabaseAwayError,
    affects_all,
    explain,
    is_lost,
    is_read_only,
    summary,
)
from wattwise_server.store.postgres.group_call import GroupCall, save_function
from wattwise_server.store.transactions import CachedJob
from wattwise_server.store.writer import InDoubtError, Owner, Submission

_T = TypeVar("_T")

log = logging.getLogger(__name__)

_STALL_SECONDS = 10.0
"""A commit that takes longer is in doubt: its connection may be cut, or its standby away."""

_AWAY_SECONDS = 4.0
"""How long a group waits for another connection. Until then callers notice no restart of the database."""

_PAUSE_SECONDS = 0.1
_LONGEST_PAUSE_SECONDS = 1.0

_SETTLE = "SELECT settle_1($1, $2, $3, $4)"

_CLOCK_ANSWERS = 5
"""The quickest of several answers tells the time best."""

# It need not be durable, and must not wait for a standby.
_NOTE = "SELECT now, others, set_config('synchronous_commit', 'off', true) FROM note_server_1($1)"
_ABANDONED = """
    SELECT count(*) FROM pg_stat_activity
    WHERE pid = ANY ($1) AND application_name = 'wattwise' AND (wait_event = 'SyncRep' OR wait_event_type = 'Lock')
"""

_SESSION = {
    "idle_in_transaction_session_timeout": "60s",
    "plan_cache_mode": "force_generic_plan",
    "jit": "off",
}


class Saver:
    """Commits groups, and stays connected.

    Attributes:
        server: A random number that identifies this process.
        clock: The database's time.
        others: The other servers that use the database, as of this one's newest note.
        on_reconnect: Called when another connection has replaced one that was lost.
        on_set_back: Called when the database's clock was set back.
        processes: PostgreSQL's processes for this connection, and for those before it that were lost.
    """

    def __init__(self, connector: Connector, server: int, observer: Observer) -> None:
        self.server = server
        self.clock = DatabaseClock()
        self.others: Collection[int] = ()
        self.on_reconnect: Callable[[], Awaitable[None]] = _nothing
        self.on_set_back: Callable[[], None] = lambda: None
        self.connector = connector
        self._observer = observer
        self._group = 0
        self.lock = asyncio.Lock()
        self.connection: Connection | None = None
        self.connected = asyncio.Event()
        self._reconnecting: asyncio.Task[None] | None = None
        self.why, self._summary = "", "it is away"
        self.processes: list[int] = []
        self._outage_logged = False
        self._closing = False

    async def start(self, connection: Connection) -> None:
        """Takes the first connection.

        Raises:
            DatabaseAwayError: the database may lose what it has committed.
        """
        await self._prepare(connection)
        self.processes = [await _process(connection)]
        self.connection = connection
        self.connected.set()

    async def close(self) -> None:
        """Closes the connection; what is under way is in doubt, and is not cancelled."""
        self._closing = True
        self.connected.set()
        if self._reconnecting is not None:
            self._reconnecting.cancel()
            await asyncio.wait({self._reconnecting})
        if self.connection is not None:
            if self.lock.locked():
                # A close would cancel a commit that waits for a standby, and leave it on this host alone.
                self.connection.terminate()
            await hang_up(self.connection)

    async def note(self) -> None:
        """Notes in the database that this server is there, and sets the clock.

        Raises:
            DatabaseAwayError: there is no connection.
        """
        async with self.lock:
            connection = self._there()
            try:
                await self._note(connection)
            except ERRORS as error:
                if is_lost(error):
                    self._lose(connection, error)
                raise DatabaseAwayError(explain(error)) from error

    async def commit(self, group: Sequence[Submission]) -> Collection[Owner]:
        """Returns once the group is durable, except what belongs to the returned owners, which are outdated.

        Raises:
            DatabaseAwayError: nothing was saved.
            InDoubtError: it is unknown whether the group was saved.
            asyncpg.PostgresError: nothing was saved.
        """
        began = perf_counter()
        outdated: set[Owner] = _replaced(group)
        todo = [submission for submission in group if submission.owner not in outdated]
        try:
            while todo:
                call = GroupCall(todo)
                moved = await self._save(call, single=len(group) == 1)
                if not moved:
                    _raise_versions(call)
                    break
                outdated.update(call.owners[key] for key in moved)
                todo = [submission for submission in todo if submission.owner not in outdated]
        except BaseException:
            self._observer.commit_failed()
            raise
        if todo and call.num_rows:
            self._observer.committed(call.num_rows, perf_counter() - began)
            if self._outage_logged:
                self._outage_logged = False
                log_event(log, logging.INFO, "commits succeed again")
        return outdated

    def explain(self, error: BaseException) -> str:
        """Returns the message to a caller."""
        known = "" if isinstance(error, InDoubtError) else "nothing was saved, "
        return f"the database could not be written ({summary(error)}); {known}retry"

    def affects_all(self, error: BaseException) -> bool:
        """Returns whether the database itself failed."""
        return affects_all(error)

    def log_failure(self, error: BaseException) -> None:
        """Logs a submission that could not be committed; one line for a whole outage."""
        if not isinstance(error, ERRORS):
            log_exception(log, "commit failed", error, cause=explain(error), message="nothing of it was saved")
        elif not affects_all(error):
            log_event(log, logging.ERROR, "commit failed", cause=explain(error), message="nothing of it was saved")
        elif not self._outage_logged:
            self._outage_logged = True
            text = "calls are refused until the database can be written again; clients retry"
            log_event(log, logging.ERROR, "commit failed", cause=explain(error), message=text)

    async def _save(self, call: GroupCall, *, single: bool) -> Sequence[int]:
        """Commits a group; returns the keys of jobs that have moved, and then has changed nothing."""
        async with self.lock:
            self._group += call.writes
            number = self._group if call.writes else 0
            give_up = monotonic() + _AWAY_SECONDS
            lost: BaseException | None = None
            doubt: BaseException | None = None
            while True:
                connection = self._there() if lost is None else await self._reconnected(give_up, lost, doubt)
                try:
                    if doubt is not None and number:
                        return await self._call_again(connection, number, call, doubt)
                    return await self._call(connection, number, call)
                except asyncpg.UniqueViolationError:
                    # Another server has just created the job.
                    if single and call.created:
                        return list(call.created)
                    raise
                except ERRORS as error:
                    if is_lost(error):
                        self._lose(connection, error)
                        lost = error
                        if not is_read_only(error):
                            doubt = error
                    elif doubt is not None and number:
                        raise InDoubtError(f"{explain(doubt)}; since then: {explain(error)}") from error
                    else:
                        raise

    async def _call(self, connection: Connection, number: int, call: GroupCall) -> Sequence[int]:
        sql, arguments = call.query(self.server, number)
        return await _answer(connection, connection.fetchval(sql, *arguments)) or ()

    async def _call_again(
        self, connection: Connection, number: int, call: GroupCall, doubt: BaseException
    ) -> Sequence[int]:
        """Commits a group in doubt, unless that has happened."""
        if await self._settled(connection, number, call, doubt):
            return ()
        # The lost call may still arrive, or create a job, for which the question above finds no row to wait for.
        try:
            moved = await self._call(connection, number, call)
        except asyncpg.UniqueViolationError:
            if await self._settled(connection, number, call, doubt):
                return ()
            raise
        return () if moved and await self._settled(connection, number, call, doubt) else moved

    async def _settled(self, connection: Connection, number: int, call: GroupCall, doubt: BaseException) -> bool:
        """Returns whether a group in doubt was committed."""
        # A new job has no row before the group, whose commit creates it.
        versions = call.changed | dict.fromkeys(call.created, 0)
        asked = connection.fetchval(_SETTLE, self.server, number, list(versions), list(versions.values()))
        found = await _answer(connection, asked)
        if found is None and len(call.created) < len(versions):
            raise InDoubtError(explain(doubt)) from doubt
        return bool(found)

    def _there(self) -> Connection:
        if self.connection is None:
            raise DatabaseAwayError(self.why or "it is not connected", self._summary)
        if self.connection.is_closed():
            self._lose(self.connection, DatabaseAwayError("the connection was closed"))
            raise DatabaseAwayError(self.why, self._summary)
        return self.connection

    def _lose(self, connection: Connection, error: BaseException) -> None:
        connection.terminate()
        if self.connection is connection and not self._closing:
            self.connection = None
            self._note_why(error)
            self.connected.clear()
            self._reconnecting = asyncio.create_task(self._reconnect(monotonic()), name="wattwise: reconnect")

    def _note_why(self, error: BaseException) -> None:
        self.why, self._summary = explain(error), summary(error)

    async def _reconnected(self, give_up: float, lost: BaseException, doubt: BaseException | None) -> Connection:
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self.connected.wait(), max(0.0, give_up - monotonic()))
        if self.connection is not None and not self._closing:
            return self.connection
        text = f"{explain(doubt or lost)}; since then: {'the server is stopping' if self._closing else self.why}"
        if doubt is None:
            raise DatabaseAwayError(text, self._summary) from lost
        raise InDoubtError(text) from doubt

    async def _reconnect(self, since: float) -> None:
        log_event(log, logging.WARNING, "database lost", cause=self.why, message="connecting again")
        pause = _PAUSE_SECONDS
        while True:
            connection = None
            try:
                connection = await self.connector.connect()
                self.processes.append(await _process(connection))
                await self._outlast(connection, self.processes[:-1])
                self.processes = self.processes[-1:]
                await asyncio.wait_for(self._prepare(connection), _STALL_SECONDS)
            except BaseException as error:
                if connection is not None:
                    connection.terminate()
                if not isinstance(error, Exception):
                    raise
                # Without a connection this server is of no use.
                if not isinstance(error, ERRORS):
                    log_exception(log, "connecting failed", error, message="trying again")
                self._note_why(error)
                await asyncio.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
            else:
                break
        await self.on_reconnect()
        self.connection = connection
        self.connected.set()
        log_event(log, logging.INFO, "database found again", seconds=round(monotonic() - since, 3))

    async def _outlast(self, connection: Connection, processes: Sequence[int]) -> None:
        """Waits for the end of commits whose connections were lost while they waited for a standby or a lock."""
        waits = False
        while await _answer(connection, connection.fetchval(_ABANDONED, processes)):
            self._note_why(DatabaseAwayError("an earlier commit waits for a standby or a lock"))
            if not waits:
                waits = True
                log_event(log, logging.WARNING, "commit waits", message=f"{self.why}: calls that write are refused")
            await asyncio.sleep(_LONGEST_PAUSE_SECONDS)

    async def _prepare(self, connection: Connection) -> None:
        for name, value in _SESSION.items():
            await connection.execute("SELECT set_config($1, $2, false)", name, value)
        # Off would acknowledge what a crash can lose, and local what the loss of this host can.
        if await connection.fetchval("SHOW synchronous_commit") in ("off", "local"):
            await connection.execute("SET synchronous_commit = on")
        await connection.execute(save_function())
        if await connection.fetchval("SHOW fsync") == "off":
            text = "it runs with fsync=off and may lose acknowledged results in a crash: turn it on"
            raise DatabaseAwayError(text, "it may lose acknowledged results")
        await self._note(connection)
        for _ in range(_CLOCK_ANSWERS):
            asked = elapsed_micros()
            now = await _answer(connection, connection.fetchval("SELECT micros_now()"))
            self.clock.set(now, asked, elapsed_micros())

    async def _note(self, connection: Connection) -> None:
        asked = elapsed_micros()
        row = await _answer(connection, connection.fetchrow(_NOTE, self.server))
        assert row is not None  # noqa: S101 - a function returns a row
        if self.clock.set(row["now"], asked, elapsed_micros()):
            self.on_set_back()
        self.others = row["others"] or ()


async def _answer(connection: Connection, asked: Awaitable[_T]) -> _T:
    """Waits for an answer, and ends the connection if it takes too long.

    The call itself is never cancelled: the database would answer at once, while a standby does not have the commit yet.
    """
    stalled = asyncio.get_running_loop().call_later(_STALL_SECONDS, connection.terminate)
    try:
        return await asked
    finally:
        stalled.cancel()


async def _process(connection: Connection) -> int:
    """Returns the number of PostgreSQL's process; what a connection itself knows may be a pooler's."""
    return int(await _answer(connection, connection.fetchval("SELECT pg_backend_pid()")))


async def _nothing() -> None:
    """Does nothing, until a store has said what it does."""


def _replaced(group: Sequence[Submission]) -> set[Owner]:
    """Returns the cached jobs of a group that were read again, if the group has submissions of both readings.

    Together they would be one change of the newer version, although the older one's know nothing of the other's.
    """
    latest: dict[int, CachedJob] = {}
    replaced: set[Owner] = set()
    for submission in group:
        owner = cast(CachedJob, submission.owner)
        other = latest.setdefault(owner.key, owner)
        if other is not owner:
            older, latest[owner.key] = (owner, other) if owner.outdated else (other, owner)
            replaced.add(older)
    return replaced


def _raise_versions(call: GroupCall) -> None:
    for key in call.created:
        call.owners[key].version = 1
    for key in call.changed:
        call.owners[key].version += 1
