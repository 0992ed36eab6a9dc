"""The address of a server, or of several, as users write it."""

from __future__ import annotations

import os
import re
import socket

from wattwise.errors import InvalidAddressError
from wattwise.variables import control_fault

# Schemes of gRPC in whose addresses commas and colons have a meaning of their own.
_WHOLE = ("unix:", "unix-abstract:", "xds:")

_LOOPBACK_NAMES = ("localhost.localdomain", "localhost4", "localhost6", "ip6-localhost", "ip6-loopback")
"""Names that systems give to their loopback addresses besides localhost."""

_ADVICE = (
    "write host:port, such as localhost:50051, without http://; several servers with commas between them, such as "
    "a.example:50051,b.example:50051; or a name that has all of them, by itself: dns:///wattwise.example:50051"
)


def check_address(address: object) -> str:
    """Returns the address, if it is well-formed: gRPC would report a malformed one as an unreachable server.

    Raises:
        InvalidAddressError: if it is malformed.
    """
    if not isinstance(address, str):
        raise InvalidAddressError(f"invalid server address {address!r}: {_ADVICE}")
    if not address:
        raise InvalidAddressError(
            f"the server address is empty: {_ADVICE}. If it was read from the server.address of a `wattwise run`, the "
            "run has ended, and with it its server, which `wattwise serve` starts again on the run's wattwise.db"
        )
    if fault := control_fault(address):
        where = "WATTWISE_SERVER" if address == os.environ.get("WATTWISE_SERVER") else "the server's address"
        raise InvalidAddressError(f"{where}, {address!r}, {fault}")
    if address.startswith(_WHOLE):
        return address
    entries = _entries(address)
    for number, entry in enumerate(entries, 1):
        if not _is_server(entry) or (len(entries) > 1 and entry.startswith("dns:")):
            where = f" (number {number} of {len(entries)})" if len(entries) > 1 else ""
            raise InvalidAddressError(f"invalid server address {entry!r}{where}: {_remedy(entry)}{_ADVICE}")
    return address


def _remedy(entry: str) -> str:
    """Returns what to correct in a malformed address of one server, if its fault is one of the usual ones."""
    if re.search(r"\s", entry):
        return "remove the space; "
    found = re.fullmatch(r"[^/]*:(\d+)(/.*)?", entry, re.ASCII)
    if found is None:
        return ""
    port, path = found.groups()
    if path:
        return f"remove {path!r}; "
    return "" if 0 < int(port[:6]) < 65536 else f"{port:.20} is not a port, which is 1 to 65535; "


def servers_of(address: str) -> tuple[str, ...]:
    """Returns the servers of a well-formed address, each as an address of its own, without repetitions."""
    return tuple(dict.fromkeys(_entries(address)))


def may_be_several(address: str) -> bool:
    """Returns whether the address may lead to several servers: a list, or a `dns:` name, which gRPC resolves to all."""
    return len(servers_of(address)) > 1 or (address.startswith("dns:") and not is_loopback(address))


def target_of(server: str) -> str:
    """Returns what gRPC connects to for a server's address.

    An IP address gets a scheme, so that gRPC resolves no name: its resolver reads the environment in another thread,
    and crashes the process if the trainer changes a variable at that moment.
    """
    host = server.rpartition(":")[0]
    if len(_packed(host)) == 4:
        return f"ipv4:{server}"
    return f"ipv6:{server}" if host.startswith("[") and _packed(host[1:-1]) else server


def server_of(address: str) -> str:
    """Returns the same text for the spellings of a server's address; those of this machine's loopback become localhost.

    For several servers the same text in whatever order they are written.
    """
    entries = _entries(address)
    if not all(map(_is_server, entries)):
        # Not a list, whatever it contains: the name of a database, for example.
        entries = [address]
    return ",".join(sorted(set(map(_spelled, entries))))


def is_loopback(address: str) -> bool:
    """Returns whether traffic to an address stays on this machine: localhost, 127.0.0.0/8, ::1 or a Unix socket.

    Several servers have to be on this machine, all of them.
    """
    return all(map(_is_loopback_server, _entries(address)))


def is_this_machine(server: str) -> bool:
    """Returns whether a server's address is this machine's by its text: any loopback address or name, or its own name.

    A name may lead elsewhere, so that this is no reason to send a token in clear text.
    """
    host = _host_of(server).rstrip(".")
    own = socket.gethostname().lower()
    return (
        _is_loopback_server(server)
        or (host != "" and host in (*_LOOPBACK_NAMES, own, own.partition(".")[0]))
        or host.endswith(".localhost")
        # Short IPv4 addresses, and those of no interface, which Linux connects to itself.
        or re.fullmatch(r"127(\.\d+){1,2}|0(\.0){0,3}", host) is not None
        or _packed(host) == b"\0" * 16
    )


def _entries(address: str) -> list[str]:
    """Returns the servers of a list; `ipv4:` or `ipv6:` before the first one is that of all."""
    if "," not in address or address.startswith(_WHOLE):
        return [address]
    first, *others = address.split(",")
    scheme = first[:5] if first.startswith(("ipv4:", "ipv6:")) else ""
    return [first, *(scheme + entry for entry in others)]


def _is_server(entry: str) -> bool:
    """Returns whether this is the address of one server, or a name of several."""
    place, size = entry, 0
    if entry.startswith(("ipv4:", "ipv6:")):
        place, size = entry[5:], 4 if entry.startswith("ipv4:") else 16
    elif entry.startswith("dns:"):
        place = re.sub("^dns:(//[^/]*/)?", "", entry)
    host, _, port = place.rpartition(":")
    # The length first: Python does not convert thousands of digits.
    if not (port.isascii() and port.isdecimal() and len(port) < 6 and 0 < int(port) < 65536):
        return False
    if host[:1] + host[-1:] == "[]":
        # Without the zone of a link-local address.
        return size != 4 and len(_packed(host[1:-1].partition("%")[0])) == 16
    if size:
        return size == 4 and len(_packed(host)) == 4
    return bool(host) and not re.search(r"[][:/;\s]", host)


def _spelled(address: str) -> str:
    found = re.fullmatch(r"(?:(?:dns|ipv4|ipv6):(?:///)?)?(?:\[([^][]+)\]|([^][:,/]+)):(\w+)", address)
    if found is None:
        return address
    host, port = (found[1] or found[2]).lower(), found[3]
    if _packed(host) in (b"\x7f\0\0\1", b"\0" * 15 + b"\1"):
        host = "localhost"
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _is_loopback_server(address: str) -> bool:
    if address.startswith(("unix:", "unix-abstract:")):
        return True
    host = _host_of(address)
    return host.removesuffix(".") == "localhost" or _is_loopback_ip(host)


def _host_of(address: str) -> str:
    """Returns the host of a server in small letters; empty if there is none, or another name server is asked for it."""
    found = re.fullmatch(r"(?:(?:dns|ipv4|ipv6):(?:///)?)?(?:\[([^][]+)\]|([^][:,/]+))(?::\w+)?", address)
    return (found[1] or found[2]).lower() if found else ""


def _is_loopback_ip(host: str) -> bool:
    # An address of IPv6 may have the zone of its interface, or an address of IPv4 in it.
    packed = _packed(host.partition("%")[0] if ":" in host else host).removeprefix(b"\0" * 10 + b"\xff\xff")
    return packed == b"\0" * 15 + b"\1" or (len(packed) == 4 and packed.startswith(b"\x7f"))


def _packed(host: str) -> bytes:
    """Returns an IP address as bytes; empty if it is none."""
    # Not from `ipaddress`, which takes longer to import than the rest of this package.
    for family in (socket.AF_INET, socket.AF_INET6):
        try:
            return socket.inet_pton(family, host)
        except (OSError, ValueError):  # noqa: PERF203 - two iterations
            continue
    return b""
