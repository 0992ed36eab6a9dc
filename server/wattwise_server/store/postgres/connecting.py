"""Connects to the primary among the hosts of a URL."""

from __future__ import annotations

import asyncio
import logging
import os
import re
from collections.abc import Mapping
from typing import TypeAlias
from urllib.parse import parse_qsl, unquote, urlsplit

import asyncpg

from wattwise_server.errors import StartError
from wattwise_server.observability.logs import log_event
from wattwise_server.store.postgres.failures import ERRORS, DatabaseAwayError, RefusedError, explain
from wattwise_server.store.postgres.options import check_options, ignored_passfile, password_source

log = logging.getLogger(__name__)

Connection: TypeAlias = "asyncpg.Connection[asyncpg.Record]"

_CONNECT_SECONDS = 2.0
"""For each host: one that does not answer must not keep the others from being asked."""

# Whatever the role and the database have: after a wait, a statement has to see what others have committed.
_SETTINGS = {
    "application_name": "wattwise",
    "default_transaction_isolation": "read committed",
    "lock_timeout": "0",
}

_NO_FILE = f"{os.devnull}/none"
_START_SECONDS = 60.0
_CLOSE_SECONDS = 1.0
_PAUSE_SECONDS = 0.5
_PRIMARIES = frozenset({"", "any", "primary", "read-write"})


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
        options = dict(parse_qsl(parts.query, keep_blank_values=True))
        if "@" in parts.path or parts.fragment or re.match("[^=&]*@", parts.query):
            # What looks like a host would be a part of the password, and be shown.
            raise StartError(
                f"{shown} is malformed: in a password write @ as %40, / as %2F, ? as %3F and # as %23; in a name of a "
                "database likewise"
            )
        self._options, self._has_password = options, bool(parts.password)
        check_options(options, shown, in_url=self._has_password)
        user, at, hosts = parts.netloc.rpartition("@")
        self.shown = shown
        if options.get("target_session_attrs", "") not in _PRIMARIES:
            raise StartError(
                f"target_session_attrs={options['target_session_attrs']} finds a server that takes no writes: "
                "use read-write, or leave it out"
            )
        if not parts.path.strip("/") and "dbname" not in options and "database" not in options:
            raise StartError(f"{self.shown} names no database: use postgresql://USER@HOST/DATABASE")
        kept = [part for part in parts.query.split("&") if part and not part.startswith("target_session_attrs=")]
        query = "&".join([*kept, "target_session_attrs=read-write"])
        self._urls = [parts._replace(netloc=f"{user}{at}{host}", query=query).geturl() for host in hosts.split(",")]
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
        self, settings: Mapping[str, str] | None = None, *, command_timeout: float | None = None
    ) -> Connection:
        """A connection to the first host that takes writes; the one that did last is asked first.

        Raises:
            DatabaseAwayError: there is none; with what every host said.
            RefusedError: likewise, and a host refuses this user, database or option.
        """
        said, kind = [], DatabaseAwayError
        passfile = _NO_FILE if ignored_passfile(self._options) else None
        for place, (name, url) in enumerate(zip(self._names, self._urls, strict=True)):
            try:
                connection: Connection = await asyncpg.connect(
                    dsn=url,
                    passfile=passfile,
                    timeout=_CONNECT_SECONDS,
                    server_settings={**_SETTINGS, **(settings or {})},
                    command_timeout=command_timeout,
                )
            except asyncpg.TargetServerAttributeNotMatched:  # noqa: PERF203 - each host may fail
                said.append(f"{name}: it is a standby")
            except (*ERRORS, ValueError) as error:
                said.append(f"{name}: {explain(error)}{self._advice(error)}")
                if _is_refusal(error):
                    kind = RefusedError
            else:
                self._urls.insert(0, self._urls.pop(place))
                self._names.insert(0, self._names.pop(place))
                return connection
        raise kind("; ".join(said))

    def _advice(self, error: Exception) -> str:
        if not isinstance(error, asyncpg.InvalidPasswordError):
            return ""
        return f": {password_source(self._options, in_url=self._has_password)}"

    async def connect_at_start(self) -> Connection:
        """A connection, once there is one: the database may start at the same time as this server.

        Raises:
            StartError: none could be made in a minute, or a host refuses this user or database.
        """
        give_up = asyncio.get_running_loop().time() + _START_SECONDS
        logged = False
        while True:
            try:
                return await self.connect()
            except DatabaseAwayError as error:
                if isinstance(error, RefusedError):
                    raise StartError(f"cannot use {self.shown} as a database: {error}") from error
                if asyncio.get_running_loop().time() > give_up:
                    raise StartError(
                        f"no PostgreSQL that takes writes answered at {self.shown} within {_START_SECONDS:.0f} s: "
                        f"{error}. Start it, or correct the hosts and ports of the URL"
                    ) from error
                if not logged:
                    logged = True
                    text = f"trying for {_START_SECONDS:.0f} s"
                    log_event(log, logging.WARNING, "database not reached", cause=str(error), message=text)
            await asyncio.sleep(_PAUSE_SECONDS)


async def hang_up(connection: Connection) -> None:
    """Closes a connection, which may be broken."""
    try:
        await connection.close(timeout=_CLOSE_SECONDS)
    except ERRORS:
        connection.terminate()
    # Until the event loop has closed the socket.
    await asyncio.sleep(0)


def _is_refusal(error: Exception) -> bool:
    code = (error.sqlstate or "") if isinstance(error, asyncpg.PostgresError) else ""
    # asyncpg's error has no type of its own.
    without_tls = type(error) is ConnectionError and "rejected SSL" in str(error)
    return code.startswith(_REFUSALS) or isinstance(error, ValueError) or without_tls


_REFUSALS = ("28", "3D", "42704")
"""Of a password, a user or a database that is wrong, and of an option."""
