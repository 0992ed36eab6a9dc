"""Ports that no other process is given."""

from __future__ import annotations

import socket


def hold_port() -> socket.socket:
    """A socket that is bound to a port of 127.0.0.1 and does not listen, so that a server can, again and again.

    Until it is closed, the system gives the port neither to a connection nor to a server that asks for any port.
    """
    held = socket.socket()
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.bind(("127.0.0.1", 0))
    return held


def port_of(held: socket.socket) -> int:
    """The port that a socket is bound to."""
    port: int = held.getsockname()[1]
    return port
