"""Where a server is, as users write it."""

from __future__ import annotations

from wattwise.errors import InvalidAddressError

# gRPC's own ways to name a server, passed on as they are.
_SCHEMES = ("dns:", "ipv4:", "ipv6:", "unix:", "xds:")


def checked(address: object) -> str:
    """The address if it can be one: a mistake in it would otherwise look like a server that is away.

    Raises:
        InvalidAddressError: if it is none; says what to write.
    """
    if isinstance(address, str):
        host, _, port = address.rpartition(":")
        in_range = port.isascii() and port.isdecimal() and 0 < int(port) < 65536
        if address.startswith(_SCHEMES) or (host and in_range and "/" not in host and not any(map(str.isspace, host))):
            return address
    raise InvalidAddressError(
        f"{address!r} is no address of a Wattwise server: write host:port, such as localhost:50051, without http://"
    )
