"""The server of the page."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import sys

import uvicorn
from wattwise.rpc.connection import most_channels

from wattwise_web.app import Application
from wattwise_web.connections import Protocol, Server, max_connections
from wattwise_web.live import LARGEST_TOTAL
from wattwise_web.log import LimitedHandler
from wattwise_web.settings import Exposure, Settings


class _Server(Server):
    """A server that ends the live streams first, because uvicorn would wait for them."""

    page: Application

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Ends the streams, then the server."""
        self.page.streams.end()
        await super().shutdown(sockets)


def serve(settings: Settings, sock: socket.socket, url: str, exposure: Exposure) -> int:
    """Serves on an open port until a signal stops it."""
    handler = LimitedHandler(sys.stderr)
    form = "%(asctime)s %(levelname)s %(name)s: %(message)s"
    logging.basicConfig(level=logging.INFO, format=form, handlers=[handler])

    # uvicorn raises the signal again once it has stopped; to stop when asked is success.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)

    async def run() -> bool:
        page = Application(settings, exposure)
        config = uvicorn.Config(
            page.app(),
            http=Protocol,
            ws="none",
            access_log=False,
            # Its own configuration has handlers without a limit.
            log_config=None,
            log_level="warning",
            server_header=False,
            proxy_headers=False,
            ssl_certfile=settings.tls_cert,
            ssl_keyfile=settings.tls_key,
            timeout_graceful_shutdown=5,
        )
        server = _Server(config, max_connections(most_channels(settings.server, LARGEST_TOTAL)))
        server.page = page
        print(f"wattwise web shows {settings.server} at {url}", flush=True)  # noqa: T201 - the command's answer
        numbers = asyncio.create_task(handler.write_numbers_regularly())
        await server.serve(sockets=[sock])
        numbers.cancel()
        return server.started

    try:
        return 0 if asyncio.run(run()) else 1
    finally:
        handler.write_numbers(early=True)
