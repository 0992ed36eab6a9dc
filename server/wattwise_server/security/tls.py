"""The server's certificates: read and checked at start, and again on request while it runs."""

from __future__ import annotations

import logging
from collections import deque
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from wattwise.files import FileError, read_bytes

from wattwise_server.config import Security
from wattwise_server.errors import StartError
from wattwise_server.observability.logs import log_event

if TYPE_CHECKING:
    from cryptography import x509

log = logging.getLogger(__name__)

_WARNED_AHEAD = timedelta(days=14)


class KeyMaterial(NamedTuple):
    """The contents of the files, in PEM."""

    key: bytes
    chain: bytes
    client_ca: bytes | None


class Certificates:
    """The server's certificate and, optionally, the authorities whose certificates clients need.

    Args:
        cert: PEM file with the certificate, followed by the intermediate ones.
        key: PEM file with its private key, without a passphrase.
        client_ca: PEM file with the authorities of client certificates; None asks clients for none.

    Raises:
        StartError: a file cannot be read or has the wrong contents.
    """

    def __init__(self, cert: Path, key: Path, client_ca: Path | None) -> None:
        self._cert = cert
        self._key = key
        self._client_ca = client_ca
        self.material = self._read()
        # A queue, which gRPC's threads and the thread of `reread` can use at the same time.
        self._reloaded: deque[KeyMaterial] = deque(maxlen=1)

    @classmethod
    def of(cls, security: Security) -> Certificates | None:
        """Returns the certificates that the settings name; None without TLS.

        Raises:
            StartError: a required setting is missing, or a file cannot be used.
        """
        cert, key, client_ca = security.tls_cert, security.tls_key, security.tls_client_ca
        if cert and key:
            return cls(cert, key, client_ca)
        if cert or key:
            present, missing = ("--tls-cert", "--tls-key") if cert else ("--tls-key", "--tls-cert")
            raise StartError(f"{present} is set without {missing}: use both")
        if client_ca:
            raise StartError("--tls-client-ca is set without --tls-cert and --tls-key: use these two as well")
        return None

    @property
    def require_client_certificate(self) -> bool:
        """Whether every client must present a certificate."""
        return self._client_ca is not None

    def take_reloaded(self) -> KeyMaterial | None:
        """Returns what the last successful `reread` read, once; None if it was taken already."""
        return self._reloaded.popleft() if self._reloaded else None

    def reread(self) -> None:
        """Reads the files again; if they cannot be used, the current ones stay in use and the log says why."""
        try:
            self.material = self._read()
        except StartError as error:
            advice = f"{error}; then send SIGHUP again; the current certificates stay in use"
            log_event(log, logging.ERROR, "certificates not read", message=advice)
        else:
            self._reloaded.append(self.material)

    def _read(self) -> KeyMaterial:
        chain, key = _bytes(self._cert, "--tls-cert"), _bytes(self._key, "--tls-key")
        certificate = _certificates(chain, self._cert, "--tls-cert")[0]
        _check_key(certificate, key, self._cert, self._key)
        client_ca = None
        if self._client_ca is not None:
            client_ca = _bytes(self._client_ca, "--tls-client-ca")
            for authority in _certificates(client_ca, self._client_ca, "--tls-client-ca"):
                _log_validity(authority, self._client_ca)
        _log_validity(certificate, self._cert)
        return KeyMaterial(key, chain, client_ca)


def _bytes(path: Path, option: str) -> bytes:
    try:
        return read_bytes(path)
    except FileNotFoundError as error:
        raise StartError(f"cannot read {path} ({option}): {error.strerror}; name another file") from None
    except FileError as error:
        raise StartError(f"cannot use {option}: {error}") from None


def _certificates(pem: bytes, path: Path, option: str) -> list[x509.Certificate]:
    from cryptography import x509  # noqa: PLC0415 - slow to import, and not needed without TLS

    try:
        return x509.load_pem_x509_certificates(pem)
    except ValueError:
        raise StartError(
            f"{path} ({option}) is not a PEM certificate: it must start with -----BEGIN CERTIFICATE-----"
        ) from None


def _check_key(certificate: x509.Certificate, pem: bytes, cert: Path, key: Path) -> None:
    from cryptography.exceptions import UnsupportedAlgorithm  # noqa: PLC0415 - as above
    from cryptography.hazmat.primitives.serialization import load_pem_private_key  # noqa: PLC0415 - as above

    try:
        private = load_pem_private_key(pem, None)
        matches = private.public_key() == certificate.public_key()
    except TypeError:
        raise StartError(f"{key} (--tls-key) is encrypted with a passphrase: remove the passphrase") from None
    except (ValueError, UnsupportedAlgorithm):
        raise StartError(
            f"{key} (--tls-key) is not a PEM private key: it must start with -----BEGIN PRIVATE KEY-----"
        ) from None
    if not matches:
        raise StartError(
            f"{key} is not the key of the first certificate in {cert}: use matching files, and put the "
            "server's own certificate before the intermediate ones"
        )


def _log_validity(certificate: x509.Certificate, path: Path) -> None:
    """Logs how long a certificate is valid. An expired one is used anyway: this machine's clock may be wrong."""
    begins, ends = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    now = datetime.now(timezone.utc)
    soon = now + _WARNED_AHEAD
    if ends <= now:  # pragma: no mutate: it is never that very moment
        log_event(
            log, logging.ERROR, "certificate expired", file=path, expires=ends, message="clients reject it: renew it"
        )
    elif begins > now:  # pragma: no mutate: as above
        log_event(
            log,
            logging.ERROR,
            "certificate not valid yet",
            file=path,
            begins=begins,
            message="clients reject it until then; check the clock",
        )
    elif ends < soon:  # pragma: no mutate: as above
        log_event(log, logging.WARNING, "certificate expires soon", file=path, expires=ends, message="renew it")
    else:
        log_event(log, logging.INFO, "certificate read", file=path, expires=ends)
