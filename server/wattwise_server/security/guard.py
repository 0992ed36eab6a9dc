"""Certificates and tokens together: what the settings ask for, and reading it again while the server runs."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable

import grpc

from wattwise_server.config import Security
from wattwise_server.observability.logs import say, say_bug
from wattwise_server.rpc.admission import Admission
from wattwise_server.rpc.handlers import Handler
from wattwise_server.security.listening import bind, check_exposure
from wattwise_server.security.tls import Certificates
from wattwise_server.security.token_book import TokenBook

log = logging.getLogger(__name__)

_LOOK_SECONDS = 0.5


class Guard:
    """Who may reach the server, and how.

    Args:
        address: Where it listens.
        security: The settings.

    Raises:
        StartError: they cannot be met, or would let strangers in.
    """

    def __init__(self, address: str, security: Security) -> None:
        self._address = address
        self._certificates = Certificates.of(security)
        check_exposure(address, security, self._certificates)
        self._tokens = TokenBook(security.tokens) if security.tokens else None

    @property
    def wraps(self) -> list[Callable[[Handler, str], Handler]]:
        """What every method is wrapped in, within whatever turns errors into statuses."""
        return [Admission(self._tokens).wrap] if self._tokens else []

    def bind(self, server: grpc.aio.Server) -> str:
        """Takes the port; returns the address with it.

        Raises:
            StartError: it cannot be had.
        """
        return bind(server, self._address, self._certificates)

    @contextlib.asynccontextmanager
    async def rereading(self, hangup: asyncio.Event) -> AsyncIterator[None]:
        """Reads the files again whenever `hangup` is set, and the tokens also when their file has changed."""
        task = asyncio.create_task(self._reread(hangup), name="wattwise: files are read again")
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait({task})

    async def _reread(self, hangup: asyncio.Event) -> None:
        while True:
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(hangup.wait(), _LOOK_SECONDS if self._tokens else None)
            asked = hangup.is_set()
            hangup.clear()
            try:
                # Off the loop: the files may lie on a network that hangs.
                await asyncio.to_thread(self._read_all if asked else self._read_changed)
            except Exception as error:  # noqa: BLE001 - the log gets all of it, and those in use are as good as before
                say_bug(log, "certificates and tokens not read", error, message="those in use stay")

    def _read_all(self) -> None:
        if self._certificates is None and self._tokens is None:
            say(log, logging.INFO, "SIGHUP ignored", message="there are neither certificates nor tokens to read again")
            return
        say(log, logging.INFO, "SIGHUP", message="reading certificates and tokens again")
        if self._certificates:
            self._certificates.reread()
        if self._tokens:
            self._tokens.reread()

    def _read_changed(self) -> None:
        if self._tokens:
            self._tokens.reread_if_changed()
