"""Ports that no other process is given."""

from __future__ import annotations

import socket
from pathlib import Path

_ESTABLISHED = "01"


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


def clients_of(port: int) -> set[int]:
    """The ports of the connections that processes of this machine have opened to a port of 127.0.0.1 or ::1."""
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path("/proc/net", table).read_text().splitlines()[1:]:
            _, local, remote, state, *_ = line.split()
            if state == _ESTABLISHED and int(remote.rpartition(":")[2], 16) == port:
                found.add(int(local.rpartition(":")[2], 16))
    return found
