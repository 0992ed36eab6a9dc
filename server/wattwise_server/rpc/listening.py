"""Binds the server to its port, with its certificates if it has any."""

from __future__ import annotations

from typing import Any

import grpc

from wattwise_server.config import check_port, host_and_port
from wattwise_server.errors import StartError
from wattwise_server.security.tls import Certificates, KeyMaterial


def bind(server: grpc.aio.Server, address: str, option: str, certificates: Certificates | None) -> str:
    """Binds to an address, which an option has named.

    Returns:
        The address, with the chosen port in place of 0.

    Raises:
        StartError: the address is malformed or cannot be bound.
    """
    host, _ = host_and_port(address)
    # gRPC would log why a port cannot be bound, and not say it.
    check_port(address, option)
    try:
        if certificates is None:
            bound = server.add_insecure_port(address)
        else:
            bound = server.add_secure_port(address, _credentials(certificates))
    except RuntimeError:
        bound = 0
    if not bound:
        raise StartError(f"cannot listen on {address} ({option}): another process has just taken the port")
    return f"{host}:{bound}"


def _credentials(certificates: Certificates) -> grpc.ServerCredentials:
    def fetch() -> grpc.ServerCertificateConfiguration | None:
        """Called by gRPC, one thread at a time, before every handshake; None means no change."""
        changed = certificates.take_reloaded()
        return _configuration(changed) if changed else None

    # The stub does not allow None.
    untyped: Any = fetch
    initial = _configuration(certificates.material)
    return grpc.dynamic_ssl_server_credentials(initial, untyped, certificates.require_client_certificate)


def _configuration(material: KeyMaterial) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration([(material.key, material.chain)], material.client_ca)
