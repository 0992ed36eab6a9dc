"""Certificates and tokens, as the settings say, and reading them again while the server runs."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator

from wattwise_server.config import Security
from wattwise_server.observability.logs import log_event, log_exception
from wattwise_server.security.authorization import Authorization
from wattwise_server.security.exposure import check_exposure
from wattwise_server.security.tls import Certificates
from wattwise_server.security.token_book import TokenBook

log = logging.getLogger(__name__)

_LOOK_SECONDS = 0.5


class Guard:
    """The server's certificates and tokens.

    Attributes:
        certificates: None without TLS.
        authorization: None without a token file.

    Raises:
        StartError: a file cannot be used, or the settings would let anyone on the network in.
    """

    def __init__(self, address: str, security: Security) -> None:
        self.certificates = Certificates.of(security)
        check_exposure(address, security, self.certificates)
        self._tokens = TokenBook(security.tokens) if security.tokens else None
        self.authorization = Authorization(self._tokens) if self._tokens else None

    @contextlib.asynccontextmanager
    async def rereading(self, hangup: asyncio.Event) -> AsyncIterator[None]:
        """Reads the files again when `hangup` is set, and the token file also when it changes."""
        task = asyncio.create_task(self._reread(hangup), name="wattwise: reload")
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait({task})

    async def _reread(self, hangup: asyncio.Event) -> None:
        pause = _LOOK_SECONDS if self._tokens else None
        while True:
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(hangup.wait(), pause)
            requested = hangup.is_set()
            hangup.clear()
            try:
                # In a thread: a network file system may hang.
                await asyncio.to_thread(self._read_all if requested else self._read_changed)
            except Exception as error:  # noqa: BLE001 - logged with its traceback; the current ones stay in use
                log_exception(log, "reload failed", error, message="the current certificates and tokens stay in use")

    def _read_all(self) -> None:
        if self.certificates is None and self._tokens is None:
            log_event(log, logging.INFO, "SIGHUP ignored", message="the server uses neither certificates nor tokens")
            return
        log_event(log, logging.INFO, "SIGHUP", message="reading certificates and tokens")
        if self.certificates:
            self.certificates.reread()
        if self._tokens:
            self._tokens.reread()

    def _read_changed(self) -> None:
        if self._tokens:
            self._tokens.reread_if_changed()
