"""The client's side of TLS: files that are checked before gRPC gets them, and what a failed handshake means."""

from __future__ import annotations

import ssl
from pathlib import Path

import grpc

from wattwise.errors import CredentialsError
from wattwise.rpc.credentials import File


def channel_credentials(ca: File | None, cert: File | None, key: File | None) -> grpc.ChannelCredentials:
    """What gRPC opens a channel with.

    Args:
        ca: PEM file of authorities; None is gRPC's own list.
        cert: PEM file of the client's certificate, if it has one.
        key: PEM file of its private key.

    Raises:
        CredentialsError: if a file cannot be read or is not what it should be.
    """
    if bool(cert) != bool(key):
        given, missing = ("tls_cert", "tls_key") if cert else ("tls_key", "tls_cert")
        raise CredentialsError(f"{given} is given without {missing}: a certificate and its key go together; give both")
    authorities = _authorities(Path(ca)) if ca else None
    if not cert or not key:
        return grpc.ssl_channel_credentials(authorities)
    _check_pair(Path(cert), Path(key))
    chain, private = _read(Path(cert), "tls_cert"), _read(Path(key), "tls_key")
    return grpc.ssl_channel_credentials(authorities, private, chain)


def _authorities(path: Path) -> bytes:
    pem = _read(path, "tls_ca")
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cadata=pem.decode("ascii"))
    except (ssl.SSLError, ValueError):
        raise CredentialsError(
            f"{path} (tls_ca) holds no certificate in PEM: it should begin with -----BEGIN CERTIFICATE-----"
        ) from None
    return pem


def _check_pair(cert: Path, key: Path) -> None:
    _read(cert, "tls_cert")
    _read(key, "tls_key")
    try:
        # Without a password it would ask at the terminal for that of a key which has one.
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_cert_chain(cert, key, password="")
    except (ssl.SSLError, ValueError) as error:
        why = getattr(error, "reason", None) or str(error)
        raise CredentialsError(
            f"{cert} (tls_cert) and {key} (tls_key) are no certificate and its key, both in PEM and the key without "
            f"a passphrase ({why}); give the two that were made together"
        ) from None


def _read(path: Path, name: str) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise CredentialsError(
            f"cannot read {path} ({name}): {error.strerror}; name a file that you can read"
        ) from None
