"""`host:port`, as operators write it."""

from __future__ import annotations

from wattwise_server.errors import StartError


def host_and_port(address: str) -> tuple[str, int]:
    """The two halves of an address; an IPv6 host keeps its brackets.

    Raises:
        StartError: when it is none.
    """
    host, colon, port = address.rpartition(":")
    if not colon or not host or not (port.isascii() and port.isdigit() and int(port) <= 65535):
        raise StartError(
            f"{address!r} is no address: write host:port, such as 127.0.0.1:50051, the port from 0 to 65535"
        )
    if ":" in host and not (host.startswith("[") and host.endswith("]")):
        raise StartError(f"{address!r} is no address: write an IPv6 host in brackets, such as [::1]:50051")
    return host, int(port)
