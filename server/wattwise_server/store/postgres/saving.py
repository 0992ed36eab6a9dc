"""The writing connection: groups of statements in one commit, and what becomes of a commit when the connection is lost.

A group is one call of the database's function `save_1`, in a transaction of its own, so that a server that stops or
stalls never holds a lock between two calls. The function compares the version of every job of the group; if one has
moved it changes nothing, and the group is sent again without that job.

When the connection is lost during a commit, it is in doubt whether the group was saved. The next connection asks
whether the newest version of one of its jobs is from this group, in a way that waits for a commit that is still under
way. A commit that waits for a standby goes on after its connection is lost. It is never cancelled, and nothing else is
sent until it has ended: every try would leave another one behind.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import math
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from time import monotonic, perf_counter
from typing import Any, TypeVar, cast

import asyncpg

from wattwise_server.clock import elapsed_micros
from wattwise_server.observability.events import Observer
from wattwise_server.observability.logs import log_event, log_exception
from wattwise_server.store.cache import CachedJob
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
from wattwise_server.store.statements import Sql
from wattwise_server.store.writer import InDoubtError, Owner, Submission

_T = TypeVar("_T")

log = logging.getLogger(__name__)

LEASE = Sql("", name="leases", columns=("job_key", "trial_number", "micros"), keys=2)
"""How long the lease of a running trial lasts from now on; None if it has ended."""

FIRST_LEASE = Sql("", name="first leases", columns=("job_key", "trial_number", "micros"), keys=2)
"""The lease of a trial that starts to run."""

EXPIRED = Sql("", name="expired", columns=("job_key", "trial_number"), keys=2)
"""A trial whose lease must have expired."""

ROOM = Sql("", name="room", columns=("prefix", "limit", "job_key"))
"""How many jobs may exist under a prefix before one is created."""

_WITHOUT_CHANGE = frozenset({LEASE, EXPIRED, ROOM})

_STALL_SECONDS = 10.0
"""A commit that takes longer is in doubt: its connection may be cut, or its standby away."""

_AWAY_SECONDS = 4.0
"""How long a group waits for another connection. Until then callers notice no restart of the database."""

_PAUSE_SECONDS = 0.1
_LONGEST_PAUSE_SECONDS = 1.0

_JSON = (
    "new_jobs",
    "job_states",
    "arms",
    "power_limits",
    "trials",
    "launches",
    "power_samples",
    "computed",
    "events",
    "history",
    "kept",
    "deleted",
    "forgotten",
)
_PARAMETERS = 28 + len(_JSON)
_REPORT_PARAMETERS = 11
_SAVE_REPORT = f"SELECT save_report_1({', '.join(f'${place}' for place in range(1, _REPORT_PARAMETERS + 1))})"
_SAVE = f"SELECT save_1({', '.join(f'${place}' for place in range(1, _PARAMETERS + 1))})"
# What `save_1` compares of jobs that are only read.
_COMPARE = """
    SELECT array_agg(e.job_key) FROM unnest($1::bigint[], $2::bigint[]) AS e (job_key, version)
    LEFT JOIN job_versions v ON v.job_key = e.job_key WHERE v.version IS DISTINCT FROM e.version
"""
_SETTLE = "SELECT settle_1($1, $2, $3, $4)"
_JOB_ID = 1

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


class GroupCall:
    """The call that commits a group.

    Attributes:
        owners: The jobs of the group by key.
        changed: Jobs that it changes.
        created: Jobs that it creates, with their ids.
    """

    def __init__(self, group: Sequence[Submission]) -> None:
        self.owners: dict[int, CachedJob] = {}
        self.changed: dict[int, int] = {}
        self.created: dict[int, str] = {}
        self.read: dict[int, int] = {}
        self.num_rows = 0
        self._rows: dict[str, list[tuple[Any, ...]]] = {}
        self._latest: dict[str, dict[tuple[Any, ...], tuple[Any, ...]]] = {}
        self._columns: dict[str, Sequence[str]] = {}
        # How long, and whether the trial starts to run.
        self._leases: dict[tuple[Any, ...], tuple[int | None, bool]] = {}
        for submission in group:
            self._add(submission)

    @property
    def writes(self) -> bool:
        """Whether it changes a job, so that it must not be repeated."""
        return bool(self.changed or self.created)

    def _add(self, submission: Submission) -> None:
        owner = cast(CachedJob, submission.owner)
        changes = False
        for sql, parameters in submission.statements:
            if sql not in _WITHOUT_CHANGE:
                changes = True
                self.num_rows += 1
            if not sql.name:
                continue
            if sql is LEASE or sql is FIRST_LEASE:
                place = parameters[:2]
                starts = sql is FIRST_LEASE or (place in self._leases and self._leases[place][1])
                self._leases[place] = (cast(int | None, parameters[2]), starts)
                continue
            if sql.name == "new_jobs":
                self.created[owner.key] = str(parameters[_JOB_ID])
            if sql.keys:
                # The last one counts, and it keeps its own place: a trial that ended and was revived is in the end so.
                self._latest.setdefault(sql.name, {})[parameters[: sql.keys]] = parameters
            else:
                self._rows.setdefault(sql.name, []).append(parameters)
            self._columns[sql.name] = sql.columns
        self.owners[owner.key] = owner
        if owner.key in self.created:
            return
        if changes:
            self.changed[owner.key] = owner.version
            self.read.pop(owner.key, None)
        elif owner.key not in self.changed:
            self.read[owner.key] = owner.version

    def query(self, server: int, number: int) -> tuple[str, Sequence[object]]:
        """The function to call, with its arguments."""
        report = self._lone_report()
        if report is not None:
            return _SAVE_REPORT, (server, number, *report)
        if self._reads_only:
            return _COMPARE, _pairs(self.read)
        return _SAVE, (server, number, *self._arguments())

    @property
    def _reads_only(self) -> bool:
        return not (self.writes or self._rows or self._latest or self._leases)

    def _lone_report(self) -> Sequence[object] | None:
        """What `save_report_1` takes, if the group is one report: without load most are."""
        if self.num_rows != 1 or len(self.owners) != 1 or len(self._leases) > 1 or self._latest:
            return None
        if tuple(self._rows) != ("measurements",):
            return None
        (row,) = self._rows["measurements"]
        micros = None
        if self._leases:
            ((place, (micros, starts)),) = self._leases.items()
            if starts or micros is None or place != row[:2]:
                return None
        return (self.changed[row[0]], *row, micros)

    def _arguments(self) -> list[object]:
        rooms, leases = self._room(), self._sorted_leases()
        arrays: list[object] = [
            *_pairs(self.changed),
            *_pairs(self.read),
            *_pairs(self.created),
            *_transposed(rooms, 3),
            *_transposed(self._latest.get("expired", {}).values(), 2),
            *_transposed(leases[True], 3),
            *_transposed(leases[False], 3),
            *_transposed(leases[None], 2),
            *_transposed(self._rows.get("measurements", ()), 7),
        ]
        return arrays + [self._json(name) for name in _JSON]

    def _room(self) -> list[tuple[str, int, int]]:
        """Each limit, less what the group itself creates before."""
        ids = list(self.created.values())
        places = {key: place for place, key in enumerate(self.created)}
        return [
            (prefix, limit - sum(job_id.startswith(prefix) for job_id in ids[: places[key]]), key)
            for prefix, limit, key in self._rows.get("room", ())
            if key in places
        ]

    def _sorted_leases(self) -> Mapping[bool | None, Sequence[tuple[int, ...]]]:
        """Those of trials that start to run, of others, and None: of trials that have ended."""
        found: dict[bool | None, list[tuple[int, ...]]] = {True: [], False: [], None: []}
        # In order, so that two servers that renew the same leases do not wait for each other.
        for place, (micros, starts) in sorted(self._leases.items()):
            if micros is None:
                found[None].append(place)
            else:
                found[starts].append((*place, micros))
        return found

    def _json(self, name: str) -> str | None:
        rows = [*self._latest.get(name, {}).values(), *self._rows.get(name, ())]
        if not rows:
            return None
        columns = self._columns[name]
        objects = [dict(zip(columns, row, strict=True)) for row in rows]
        try:
            return json.dumps(objects, allow_nan=False)
        except ValueError:
            return json.dumps([{name: _finite(value) for name, value in each.items()} for each in objects])


def _finite(value: object) -> object:
    if not isinstance(value, float) or math.isfinite(value):
        return value
    # As in SQLite, NaN is NULL.
    return None if math.isnan(value) else str(value)


def _pairs(values: Mapping[Any, Any]) -> tuple[object, object]:
    return (list(values), list(values.values())) if values else (None, None)


def _transposed(rows: Collection[Sequence[object]] | Iterable[Sequence[object]], columns: int) -> Sequence[object]:
    return [list(column) for column in zip(*rows, strict=True)] or (None,) * columns


class Saver:
    """Commits groups, and stays connected.

    Attributes:
        server: A random number that identifies this process.
        clock: The database's time.
        others: The other servers that use the database, as of this one's newest note.
        on_reconnect: Called when another connection has replaced one that was lost.
        on_set_back: Called when the database's clock was set back.
    """

    def __init__(self, connector: Connector, server: int, observer: Observer) -> None:
        self.server = server
        self.clock = DatabaseClock()
        self.others: Collection[int] = ()
        self.on_reconnect: Callable[[], Awaitable[None]] = _nothing
        self.on_set_back: Callable[[], None] = lambda: None
        self._connector = connector
        self._observer = observer
        self._group = 0
        self._using = asyncio.Lock()
        self._connection: Connection | None = None
        self._connected = asyncio.Event()
        self._reconnecting: asyncio.Task[None] | None = None
        self._why, self._summary = "", "it is away"
        # PostgreSQL's processes for this connection, and for those before it that were lost.
        self._processes: list[int] = []
        self._outage_logged = False
        self._closing = False

    async def start(self, connection: Connection) -> None:
        """Takes the first connection.

        Raises:
            DatabaseAwayError: the database may lose what it has committed.
        """
        await self._prepare(connection)
        self._processes = [await _process(connection)]
        self._connection = connection
        self._connected.set()

    async def close(self) -> None:
        """Closes the connection; what is under way is in doubt, and is not cancelled."""
        self._closing = True
        self._connected.set()
        if self._reconnecting is not None:
            self._reconnecting.cancel()
            await asyncio.wait({self._reconnecting})
        if self._connection is not None:
            if self._using.locked():
                # To close it would cancel a commit that waits for a standby, and leave it on this host alone.
                self._connection.terminate()
            await hang_up(self._connection)

    async def note(self) -> None:
        """Notes in the database that this server is there, and sets the clock.

        Raises:
            DatabaseAwayError: there is no connection.
        """
        async with self._using:
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
        """The message to a caller."""
        known = "" if isinstance(error, InDoubtError) else "nothing was saved, "
        return f"the database could not be written ({summary(error)}); {known}retry"

    def affects_all(self, error: BaseException) -> bool:
        """Whether the database itself failed."""
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
        async with self._using:
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
        """Whether a group in doubt was committed."""
        # Of a new job there is nothing to read but what the group itself has created.
        versions = call.changed | dict.fromkeys(call.created, 0)
        asked = connection.fetchval(_SETTLE, self.server, number, list(versions), list(versions.values()))
        found = await _answer(connection, asked)
        if found is None and len(call.created) < len(versions):
            raise InDoubtError(explain(doubt)) from doubt
        return bool(found)

    def _there(self) -> Connection:
        if self._connection is None:
            raise DatabaseAwayError(self._why or "it is not connected", self._summary)
        if self._connection.is_closed():
            self._lose(self._connection, DatabaseAwayError("the connection was closed"))
            raise DatabaseAwayError(self._why, self._summary)
        return self._connection

    def _lose(self, connection: Connection, error: BaseException) -> None:
        connection.terminate()
        if self._connection is connection and not self._closing:
            self._connection = None
            self._note_why(error)
            self._connected.clear()
            self._reconnecting = asyncio.create_task(self._reconnect(monotonic()), name="wattwise: reconnect")

    def _note_why(self, error: BaseException) -> None:
        self._why, self._summary = explain(error), summary(error)

    async def _reconnected(self, give_up: float, lost: BaseException, doubt: BaseException | None) -> Connection:
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._connected.wait(), max(0.0, give_up - monotonic()))
        if self._connection is not None and not self._closing:
            return self._connection
        text = f"{explain(doubt or lost)}; since then: {'the server is stopping' if self._closing else self._why}"
        if doubt is None:
            raise DatabaseAwayError(text, self._summary) from lost
        raise InDoubtError(text) from doubt

    async def _reconnect(self, since: float) -> None:
        log_event(log, logging.WARNING, "database lost", cause=self._why, message="connecting again")
        pause = _PAUSE_SECONDS
        while True:
            connection = None
            try:
                connection = await self._connector.connect()
                self._processes.append(await _process(connection))
                await self._outlast(connection, self._processes[:-1])
                self._processes = self._processes[-1:]
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
        self._connection = connection
        self._connected.set()
        log_event(log, logging.INFO, "database found again", seconds=round(monotonic() - since, 3))

    async def _outlast(self, connection: Connection, processes: Sequence[int]) -> None:
        """Waits for the end of commits whose connections were lost while they waited for a standby or a lock."""
        waits = False
        while await _answer(connection, connection.fetchval(_ABANDONED, processes)):
            self._note_why(DatabaseAwayError("an earlier commit waits for a standby or a lock"))
            if not waits:
                waits = True
                log_event(log, logging.WARNING, "commit waits", message=f"{self._why}: calls that write are refused")
            await asyncio.sleep(_LONGEST_PAUSE_SECONDS)

    async def _prepare(self, connection: Connection) -> None:
        for name, value in _SESSION.items():
            await connection.execute("SELECT set_config($1, $2, false)", name, value)
        # Off would acknowledge what a crash can lose, and local what the loss of this host can.
        if await connection.fetchval("SHOW synchronous_commit") in ("off", "local"):
            await connection.execute("SET synchronous_commit = on")
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
    """The number of PostgreSQL's process; what a connection itself knows may be a pooler's."""
    return int(await _answer(connection, connection.fetchval("SELECT pg_backend_pid()")))


async def _nothing() -> None:
    """Until a store has said what it does."""


def _replaced(group: Sequence[Submission]) -> set[Owner]:
    """The cached jobs of a group that were read again, and for which the group has submissions of both readings.

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
