"""Where the server listens, and what has to be said before strangers can reach it."""

from __future__ import annotations

import ipaddress
import logging
import socket

from wattwise_server.config import Security, host_and_port
from wattwise_server.errors import StartError
from wattwise_server.observability.logs import log_event
from wattwise_server.security.tls import Certificates

log = logging.getLogger(__name__)


def check_exposure(address: str, security: Security, certificates: Certificates | None) -> None:
    """Refuses to be reached from other machines in a way that lets strangers in, unless the operator spelled it out.

    Raises:
        StartError: it would be; says what to add. Or the address is none.
    """
    host, _ = host_and_port(address)
    dangers = _dangers(security, certificates)
    if not dangers or _is_loopback(host, address):
        return
    what = " and ".join(dangers)
    if not security.insecure:
        raise StartError(
            f"{address} can be reached from other machines, {what}: give --tls-cert, --tls-key and --tokens, "
            "or listen on 127.0.0.1, or spell --insecure out"
        )
    log_event(
        log,
        logging.WARNING,
        "insecure address",
        address=address,
        message=f"it can be reached from other machines, {what}",
    )


def _dangers(security: Security, certificates: Certificates | None) -> list[str]:
    dangers = []
    if certificates is None:
        dangers.append("where all that is sent to it, tokens too, can be read on the way")
    # Whoever has a certificate of the operator's own authority is no stranger.
    if security.tokens is None and not (certificates and certificates.require_client_certificate):
        dangers.append("where whoever reaches it may delete every job")
    return dangers


def _is_loopback(host: str, address: str) -> bool:
    """Whether a host, by whatever name, is this machine alone."""
    try:
        found = socket.getaddrinfo(host.strip("[]"), None, type=socket.SOCK_STREAM)
    except OSError:
        raise StartError(f"cannot listen on {address}: {host} is no name of this machine") from None
    return all(ipaddress.ip_address(str(place[0]).partition("%")[0]).is_loopback for *_, place in found)
