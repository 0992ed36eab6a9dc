"""Connects to the primary among the hosts of a URL, and finds out what keeps a server from using it."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import ssl
from collections.abc import Mapping, Sequence
from typing import TypeAlias
from urllib.parse import parse_qsl, quote, unquote, urlsplit

import asyncpg
from asyncpg.connect_utils import SessionAttribute

from wattwise_server.errors import StartError
from wattwise_server.observability.logs import log_event
from wattwise_server.store.postgres.failures import (
    ERRORS,
    DatabaseAwayError,
    RefusedError,
    explain,
    summary,
)
from wattwise_server.store.postgres.options import (
    WITHOUT_CERTIFICATE,
    check_options,
    ignored_passfile,
    named_schema,
    password_source,
    tls_mode,
)
from wattwise_server.store.postgres.pooling import check_sessions, pooler

log = logging.getLogger(__name__)

Connection: TypeAlias = "asyncpg.Connection[asyncpg.Record]"

OLDEST = 14
"""The oldest version of PostgreSQL that has what servers use."""

_NAME = "wattwise"
"""The name by which `wattwise copy` finds the connections of servers."""

_CONNECT_SECONDS = 2.0
"""The time for each host: one that does not answer must not keep the others from being asked."""

# From the first statement on, whatever the role and the database have. After a wait, a statement has to see what others
# have committed. Timeouts are off, because servers have limits of their own. The search_path, which is added, has one
# schema, so that no table of the same name in another one is taken, nor a temporary one.
_SETTINGS = {
    "application_name": _NAME,
    "default_transaction_isolation": "read committed",
    "idle_in_transaction_session_timeout": "0",
    "idle_session_timeout": "0",
    "lock_timeout": "0",
    "statement_timeout": "0",
}
_SINCE_17 = {"transaction_timeout": "0"}
_SCHEMA = "public"

_NO_FILE = f"{os.devnull}/none"
_START_SECONDS = 60.0
_CLOSE_SECONDS = 1.0
_PAUSE_SECONDS = 0.5
_PRIMARIES = frozenset({"", "any", "primary", "read-write"})

_WAITING_HELPS = ("08", "53", "57", "58")
"""Classes of errors that end by themselves: the others are of a user, a database or an option that is wrong."""

_OF_POSTGRES = ("28", "3D", "53", "57", "58")
"""Classes of errors that say what is wrong, whatever is between a server and PostgreSQL."""

_ANSWERS = (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError, ConnectionResetError)
"""What only a host that is there can cause."""

_OF_OPTIONS = ("22", "42")
"""Classes of errors by which PostgreSQL refuses a setting."""

_STARTUP = "startup parameter"
"""What PgBouncer calls a setting."""

_ADVICE = {
    "28000": "correct the user of the URL or pg_hba.conf; where that demands TLS, add sslmode=require",
    "42501": "GRANT CONNECT ON DATABASE to this user, or correct the user or the database of the URL",
    "55000": "ALTER DATABASE ... ALLOW_CONNECTIONS true, or correct the URL",
    "3D000": "create it (CREATE DATABASE ... ENCODING 'UTF8' TEMPLATE template0), or correct the URL",
}
_NO_TLS = "turn on ssl in its configuration, or use sslmode=prefer"
_NO_POSTGRES = "what listens there is not PostgreSQL: correct the host and port of the URL"
_WRONG_TLS = "name the authority of its certificate in sslrootcert, and the host that the certificate is for in the URL"

_WHY_READ_ONLY = """
    SELECT pg_is_in_recovery() AS standby, (
        SELECT source FROM pg_settings WHERE name = 'default_transaction_read_only' AND setting = 'on'
    ) AS source
"""
_IGNORED = """
    SELECT count(*) FROM unnest($1::text[], $2::text[]) AS s (name, value) WHERE current_setting(name) <> value
"""
_SCHEMAS = """
    SELECT nspname, nspname = $1 AND has_schema_privilege(n.oid, 'USAGE') AS usable,
        EXISTS (SELECT FROM pg_class WHERE relnamespace = n.oid AND relname = 'wattwise_schema') AS has_tables
    FROM pg_namespace n WHERE nspname !~ '^pg_' ORDER BY nspname
"""


class Connector:
    """Makes connections to whichever host takes writes.

    Attributes:
        shown: The URL without its password.
    """

    def __init__(self, url: str, shown: str) -> None:
        """Takes a URL as libpq does, with one host or several.

        Raises:
            StartError: it is malformed.
        """
        try:
            parts = urlsplit(url)
        except ValueError as error:
            raise StartError(f"{shown} is malformed: a password's special characters are written as %XX") from error
        if "\0" in unquote(url):
            raise StartError(f"{shown} is malformed: it has %00, a character that PostgreSQL does not take")
        options = dict(parse_qsl(parts.query, keep_blank_values=True))
        if "@" in parts.path or parts.fragment or re.match("[^=&]*@", parts.query):
            # What looks like a host would be a part of the password, and be shown.
            raise StartError(
                f"{shown} is malformed: in a password write @ as %40, / as %2F, ? as %3F and # as %23; in a name of a "
                "database likewise"
            )
        self._options, self._has_password = options, bool(parts.password)
        self._with_service = check_options(options, shown, in_url=self._has_password)
        user, at, hosts = parts.netloc.rpartition("@")
        self.shown = shown
        if options.get("target_session_attrs", "") not in _PRIMARIES:
            raise StartError(
                f"target_session_attrs={options['target_session_attrs']} finds a server that takes no writes: "
                "use read-write, or leave it out"
            )
        if not parts.path.strip("/") and "dbname" not in options and "database" not in options:
            raise StartError(f"{self.shown} names no database: use postgresql://USER@HOST/DATABASE")
        self._schema = named_schema(options, shown)
        self._settings = {**_SETTINGS, "search_path": f'"{self._schema or _SCHEMA}", pg_temp'}
        # Whether something between this server and PostgreSQL drops them.
        self._are_dropped = False
        self._urls = [parts._replace(netloc=f"{user}{at}{host}").geturl() for host in hosts.split(",")]
        self._names = [unquote(host) or options.get("host", "the local socket") for host in hosts.split(",")]
        self._check()

    def _check(self) -> None:
        for url in self._urls:
            try:
                port = urlsplit(url).port
            except ValueError as error:
                raise StartError(f"{self.shown} has a port that is not a number from 1 to 65535") from error
            if port == 0:
                raise StartError(f"{self.shown} has port 0: name the port on which PostgreSQL listens")

    async def connect(
        self,
        settings: Mapping[str, str] | None = None,
        *,
        name: str = _NAME,
        command_timeout: float | None = None,
        reads: bool = False,
        starting: bool = False,
    ) -> Connection:
        """Connects to the first host that takes writes; the one that did last is asked first.

        Args:
            settings: Of the session, besides those that every connection has.
            name: Its application_name.
            command_timeout: How long a statement may take, in seconds.
            reads: Whether a primary will do that is read-only.
            starting: Whether to look for a pooler, if a host refuses the connection.

        Raises:
            DatabaseAwayError: there is none; with what every host said.
            RefusedError: likewise, and a host refuses this user, database, option or any write.
        """
        said: list[tuple[str, DatabaseAwayError]] = []
        begun_with = self._settings | {"application_name": name}
        attributes = SessionAttribute.primary if reads else SessionAttribute.read_write
        for place, (host, url) in enumerate(zip(self._names, self._urls, strict=True)):
            try:
                connection = await self._open(url, begun_with, attributes, command_timeout)
                await _set(connection, {**(begun_with if self._are_dropped else {}), **(settings or {})})
            except (*ERRORS, ValueError) as error:  # noqa: PERF203 - each host may fail
                said.append((host, await self._failure(url, error, starting=starting)))
            else:
                self._urls.insert(0, self._urls.pop(place))
                self._names.insert(0, self._names.pop(place))
                return connection
        raise _combined(said)

    async def _open(
        self,
        url: str,
        settings: Mapping[str, str],
        attributes: SessionAttribute = SessionAttribute.any,
        command_timeout: float | None = None,
    ) -> Connection:
        connection: Connection = await asyncpg.connect(
            dsn=url,
            passfile=_NO_FILE if ignored_passfile(self._with_service) else None,
            timeout=_CONNECT_SECONDS,
            server_settings=dict(settings),
            command_timeout=command_timeout,
            target_session_attrs=attributes,
        )
        return connection

    async def _failure(self, url: str, error: Exception, *, starting: bool) -> DatabaseAwayError:
        """Returns why a host cannot be used."""
        if isinstance(error, asyncpg.TargetServerAttributeNotMatched):
            return await self._why_read_only(url)
        said = f"{explain(error)}{self._advice(error)}"
        code = (error.sqlstate or "") if isinstance(error, asyncpg.PostgresError) else ""
        answered = isinstance(error, (*_ANSWERS, ssl.SSLError)) or _is_without_tls(error)
        if starting and isinstance(error, _ANSWERS) and not isinstance(error, ValueError):
            found = None if code.startswith(_OF_POSTGRES) else await self._refusal(url, error)
            if found is not None:
                return found
        waiting_helps = code.startswith(_WAITING_HELPS) if code else not isinstance(error, (ValueError, ssl.SSLError))
        if waiting_helps and not _is_without_tls(error):
            return DatabaseAwayError(said, summary(error), answered=answered)
        return RefusedError(said, summary(error), answered=answered)

    async def _why_read_only(self, url: str) -> DatabaseAwayError:
        try:
            connection = await self._open(url, {})
            try:
                row = await connection.fetchrow(_WHY_READ_ONLY)
            finally:
                await hang_up(connection)
        except ERRORS as later:
            return DatabaseAwayError(explain(later), summary(later), answered=True)
        assert row is not None  # noqa: S101 - it has no condition
        if row["standby"] or not row["source"]:
            text = "it is a standby, which takes no writes: promote it, or name the primary in the URL"
            return DatabaseAwayError(text, "it is a standby", answered=True)
        text = (
            f"it is read-only: default_transaction_read_only is on, set by the {row['source']}. Turn it off; some "
            "providers turn it on while the disk is almost full"
        )
        return RefusedError(text, "it is read-only", answered=True)

    async def _refusal(self, url: str, error: Exception) -> DatabaseAwayError | None:
        """Returns what refuses a connection with settings, if not the database; None: the error says what is wrong."""
        code = error.sqlstate if isinstance(error, asyncpg.PostgresError) else None
        refuses = "refuses a setting that every connection needs"
        options = self._options.get("options")
        if (
            code
            and not code.startswith(_OF_OPTIONS)
            and any(name in str(error) for name in (*self._settings, _STARTUP))
        ):
            return pooler(refuses, error)
        if await self._version(url) is not None:
            try:
                # A second time, because the database may have been starting.
                await hang_up(await self._open(url, self._settings))
            except ERRORS:
                version = await self._version(url)
                if version is not None:
                    return pooler(refuses, error) if version >= OLDEST else _too_old(version)
        elif options and not (code and code.startswith(_OF_OPTIONS)):
            without = re.sub(r"(?<=[?&])options=[^&]*&?", "", url)
            if await self._version(without) is not None:
                return pooler("refuses the options of the URL", error)
        return None

    async def _version(self, url: str) -> int | None:
        """Returns the version of a host's PostgreSQL, if a connection without settings can be made."""
        try:
            connection = await self._open(url, {})
        except (*ERRORS, ValueError):
            return None
        version = connection.get_server_version().major
        await hang_up(connection)
        return version

    def _advice(self, error: Exception) -> str:
        if isinstance(error, asyncpg.InvalidPasswordError):
            return f": {password_source(self._options, in_url=self._has_password)}"
        if isinstance(error, ssl.SSLError):
            return f": {_WRONG_TLS}"
        if _is_without_tls(error):
            # Without the demand for TLS, PostgreSQL may decline, and any other answer is an error of asyncpg's.
            return f": {_NO_TLS if tls_mode(self._with_service) not in WITHOUT_CERTIFICATE else _NO_POSTGRES}"
        code = (error.sqlstate or "") if isinstance(error, asyncpg.PostgresError) else ""
        is_of_setting = code.startswith(_OF_OPTIONS) and "permission denied for database" not in str(error)
        if is_of_setting and self._options.get("options"):
            return ": correct the options of the URL"
        return f": {_ADVICE[code]}" if code in _ADVICE else ""

    async def connect_at_start(self) -> Connection:
        """Connects, once that is possible: the database may start at the same time as this server.

        Raises:
            StartError: none could be made in a minute, a host refuses this user or database, or something between this
                server and PostgreSQL does not keep sessions.
        """
        give_up = asyncio.get_running_loop().time() + _START_SECONDS
        logged = False
        while True:
            try:
                return await self._connect_and_check()
            except DatabaseAwayError as error:
                if isinstance(error, RefusedError):
                    raise StartError(f"cannot use {self.shown} as a database: {error}") from error
                if asyncio.get_running_loop().time() > give_up:
                    if error.answered:
                        tried = f"tried for {_START_SECONDS:.0f} s"
                        raise StartError(f"cannot use {self.shown} as a database, {tried}: {error}") from error
                    raise StartError(
                        f"no PostgreSQL that takes writes answered at {self.shown} within {_START_SECONDS:.0f} s: "
                        f"{error}. Start it, or correct the hosts and ports of the URL"
                    ) from error
                if not logged:
                    logged = True
                    text = f"trying for {_START_SECONDS:.0f} s"
                    log_event(log, logging.WARNING, "database not reached", cause=str(error), message=text)
            await asyncio.sleep(_PAUSE_SECONDS)

    async def _connect_and_check(self) -> Connection:
        connection = await self.connect(starting=True)
        try:
            await self._check_session(connection)
            await self._check_schema(connection)
        except ERRORS as error:
            connection.terminate()
            if isinstance(error, DatabaseAwayError):
                raise
            raise DatabaseAwayError(f"{self._names[0]}: {explain(error)}", summary(error), answered=True) from error
        except BaseException:
            connection.terminate()
            raise
        return connection

    async def _check_session(self, connection: Connection) -> None:
        if connection.get_server_version().major < OLDEST:
            raise _too_old(connection.get_server_version().major)
        second = await self.connect(name="wattwise check", starting=True)
        try:
            await check_sessions(connection, second)
        except RefusedError as error:
            raise _combined([(self._names[0], error)]) from error
        finally:
            await hang_up(second)
        if await connection.fetchval(_IGNORED, list(self._settings), list(self._settings.values())):
            self._are_dropped = True
            await _set(connection, self._settings)

    async def _check_schema(self, connection: Connection) -> None:
        """Checks that the tables are where this server looks for them, or nowhere.

        Raises:
            StartError: they are in another schema, or the schema cannot be used.
        """
        schema = self._schema or _SCHEMA
        found = await connection.fetch(_SCHEMAS, schema)
        if not any(row["usable"] for row in found):
            raise StartError(
                f'{self.shown} has no schema "{schema}", or its user may not use it: CREATE SCHEMA "{schema}", or '
                f'GRANT USAGE ON SCHEMA "{schema}"'
            )
        others = [row["nspname"] for row in found if row["has_tables"]]
        if len(others) > 1 and not self._schema:
            named = ", ".join(f'"{name}"' for name in others)
            raise StartError(
                f"{self.shown} has the tables of Wattwise in the schemas {named}: add options=-csearch_path%3D and one "
                "of these names to the URL"
            )
        if others and schema not in others and not self._schema:
            there, here = (f"options=-csearch_path%3D%22{quote(name)}%22" for name in (others[0], schema))
            raise StartError(
                f'{self.shown} has the tables of Wattwise in the schema "{others[0]}": add {there} to the URL, or '
                f"{here} for new ones"
            )


async def hang_up(connection: Connection) -> None:
    """Closes a connection, which may be broken."""
    try:
        await connection.close(timeout=_CLOSE_SECONDS)
    except ERRORS:
        connection.terminate()
    # Until the event loop has closed the socket.
    await asyncio.sleep(0)


async def _set(connection: Connection, settings: Mapping[str, str]) -> None:
    """Sets what the start of a connection could not, as text, because a pooler may know no prepared statement."""
    since_17 = _SINCE_17 if connection.get_server_version().major >= 17 else {}
    wanted = {**since_17, **settings}
    if not wanted:
        return
    calls = (f"pg_catalog.set_config('{name}', '{value}', false)" for name, value in wanted.items())
    try:
        await connection.execute(f"SELECT {', '.join(calls)}", timeout=_CONNECT_SECONDS)
    except BaseException:
        connection.terminate()
        raise


def _combined(said: Sequence[tuple[str, DatabaseAwayError]]) -> DatabaseAwayError:
    errors = [error for _, error in said]
    kind = RefusedError if any(isinstance(error, RefusedError) for error in errors) else DatabaseAwayError
    return kind(
        "; ".join(f"{name}: {error}" for name, error in said),
        "; ".join(dict.fromkeys(error.summary for error in errors)),
        answered=all(error.answered for error in errors),
    )


def _too_old(version: int) -> RefusedError:
    return RefusedError(f"it is PostgreSQL {version}: {OLDEST} or newer is needed", answered=True)


def _is_without_tls(error: Exception) -> bool:
    # asyncpg's error has no type of its own.
    return type(error) is ConnectionError and "rejected SSL" in str(error)
