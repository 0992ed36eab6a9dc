"""The server's address as users write it."""

from __future__ import annotations

import re
import socket

from wattwise.errors import InvalidAddressError

# gRPC's own address schemes, passed on unchanged.
_SCHEMES = ("dns:", "ipv4:", "ipv6:", "unix:", "xds:")


def check_address(address: object) -> str:
    """The address, if it is well-formed: gRPC would report a malformed one as an unreachable server.

    Raises:
        InvalidAddressError: if it is malformed.
    """
    if isinstance(address, str):
        host, _, port = address.rpartition(":")
        in_range = port.isascii() and port.isdecimal() and 0 < int(port) < 65536
        if address.startswith(_SCHEMES) or (host and in_range and "/" not in host and not any(map(str.isspace, host))):
            return address
    raise InvalidAddressError(
        f"invalid server address {address!r}: write host:port, such as localhost:50051, without http://"
    )


def server_of(address: str) -> str:
    """The same text for the spellings of a server's address; those of this machine's loopback become localhost."""
    found = re.fullmatch(r"(?:(?:dns|ipv4|ipv6):(?:///)?)?(?:\[([^][]+)\]|([^][:,/]+)):(\w+)", address)
    if found is None:
        return address
    host, port = (found[1] or found[2]).lower(), found[3]
    if _packed(host) in (b"\x7f\0\0\1", b"\0" * 15 + b"\1"):
        host = "localhost"
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_loopback(address: str) -> bool:
    """Whether traffic to an address stays on this machine: localhost, 127.0.0.0/8, ::1 or a Unix socket."""
    if address.startswith(("unix:", "unix-abstract:")):
        return True
    # A list of addresses, or one with a name server to query, does not match, whatever it starts with.
    found = re.fullmatch(r"(?:(?:dns|ipv4|ipv6):(?:///)?)?(?:\[([^][]+)\]|([^][:,/]+))(?::\w+)?", address)
    if found is None:
        return False
    host = found[1] or found[2]
    return host.lower() == "localhost" or _is_loopback_ip(host)


def _is_loopback_ip(host: str) -> bool:
    packed = _packed(host)
    return packed == b"\0" * 15 + b"\1" or (len(packed) == 4 and packed.startswith(b"\x7f"))


def _packed(host: str) -> bytes:
    """An IP address as bytes; empty if it is none."""
    # Not from `ipaddress`, which takes longer to import than the rest of this package.
    for family in (socket.AF_INET, socket.AF_INET6):
        try:
            return socket.inet_pton(family, host)
        except OSError:  # noqa: PERF203 - two iterations
            continue
    return b""
