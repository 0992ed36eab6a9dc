"""Certificates and tokens together: what the settings ask for, and reading it again while the server runs."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
from collections.abc import AsyncIterator, Callable

import grpc

from wattwise_server.admission import Admission
from wattwise_server.config import Config
from wattwise_server.decoding import Handler
from wattwise_server.listening import bind, check_exposure
from wattwise_server.tls import Certificates
from wattwise_server.token_book import TokenBook

log = logging.getLogger(__name__)

_LOOK_SECONDS = 0.5


class Security:
    """Who may reach the server, and how.

    Args:
        config: The settings.

    Raises:
        StartError: they cannot be met, or would let strangers in.
    """

    def __init__(self, config: Config) -> None:
        self._certificates = Certificates.of(config)
        check_exposure(config, self._certificates)
        self._tokens = TokenBook(config.tokens) if config.tokens else None

    @property
    def wraps(self) -> list[Callable[[Handler, str], Handler]]:
        """What every method is wrapped in, within whatever turns errors into statuses."""
        return [Admission(self._tokens).wrap] if self._tokens else []

    def bind(self, server: grpc.aio.Server, address: str) -> str:
        """Takes the port; returns the address with it.

        Raises:
            StartError: the address is none, or cannot be had.
        """
        return bind(server, address, self._certificates)

    @contextlib.asynccontextmanager
    async def rereading(self) -> AsyncIterator[None]:
        """Reads the files again on SIGHUP, and the tokens also when their file has changed.

        With nothing to read SIGHUP keeps its usual meaning: that the terminal was closed.
        """
        if self._certificates is None and self._tokens is None:
            yield
            return
        hangup, loop = asyncio.Event(), asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGHUP, hangup.set)
        task = asyncio.create_task(self._reread(hangup), name="wattwise-reread")
        try:
            yield
        finally:
            # Not removed: a SIGHUP must not cut off what is finished at shutdown.
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
            except Exception:
                log.exception("certificates and tokens could not be read again; those in use stay")

    def _read_all(self) -> None:
        log.info("SIGHUP: reading certificates and tokens again")
        if self._certificates:
            self._certificates.reread()
        if self._tokens:
            self._tokens.reread()

    def _read_changed(self) -> None:
        if self._tokens:
            self._tokens.reread_if_changed()
