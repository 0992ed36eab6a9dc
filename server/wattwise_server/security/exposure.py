"""Which addresses the server may listen on with which protection."""

from __future__ import annotations

import ipaddress
import logging

from wattwise_server.config import Security, host_and_port, resolve
from wattwise_server.errors import StartError
from wattwise_server.observability.logs import log_event
from wattwise_server.security.tls import Certificates

log = logging.getLogger(__name__)


def check_exposure(address: str, security: Security, certificates: Certificates | None) -> None:
    """Refuses an address that other machines can reach without TLS or tokens, unless `--insecure` is set.

    Raises:
        StartError: the address is refused or malformed.
    """
    host, port = host_and_port(address)
    dangers = _dangers(security, certificates)
    if not dangers or _is_loopback(host, port, address):
        return
    what = " and ".join(dangers)
    if not security.insecure:
        raise StartError(
            f"{address} is reachable from other machines, and {what}: use --tls-cert and --tls-key with --tokens or "
            "--tls-client-ca, listen on 127.0.0.1, or accept the risk with --insecure"
        )
    log_event(
        log,
        logging.WARNING,
        "insecure address",
        address=address,
        message=f"reachable from other machines, and {what}",
    )


def _dangers(security: Security, certificates: Certificates | None) -> list[str]:
    dangers = []
    if certificates is None:
        dangers.append("traffic, tokens included, is not encrypted")
    # A client certificate of the operator's authority identifies a caller as well as a token does.
    if security.tokens is None and not (certificates and certificates.require_client_certificate):
        dangers.append("any client may delete every job")
    return dangers


def _is_loopback(host: str, port: int, address: str) -> bool:
    try:
        found = resolve(host, port)
    except OSError:
        raise StartError(f"cannot listen on {address}: the host name {host} cannot be resolved") from None
    return all(ipaddress.ip_address(str(where[0])).is_loopback for *_, where in found)
