"""Real tokens and certificates for tests."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import NamedTuple

import grpc
import trustme
from wattwise import Credentials
from wattwise_server.security.token_file import add_token
from wattwise_server.security.tokens import Role, new_token

DAY = timedelta(days=1)


def issue(file: Path, role: Role, prefix: str, lifetime: timedelta | None = None) -> str:
    """Add a token to a file and return it, as `wattwise token create` does."""
    text, token = new_token(role, prefix, lifetime)
    add_token(file, token)
    return text


def bearing(token: str) -> tuple[tuple[str, str], ...]:
    """The metadata of a call with a token."""
    return (("authorization", f"Bearer {token}"),)


class Pair(NamedTuple):
    """The files of a certificate and its key."""

    cert: Path
    key: Path


class Authority:
    """An authority that issues certificates into a folder.

    Args:
        folder: The folder of its files.
        name: The prefix of their names.
    """

    def __init__(self, folder: Path, name: str = "ca") -> None:
        self._folder = folder
        self._ca = trustme.CA()
        self.file = folder / f"{name}.pem"
        self._ca.cert_pem.write_to_path(self.file)

    def issue(self, name: str, *hosts: str, valid: tuple[timedelta, timedelta] = (-DAY, 90 * DAY)) -> Pair:
        """Issue a certificate for hosts; by default for localhost and 127.0.0.1.

        Args:
            name: The name of its files.
            hosts: The hosts that it is valid for.
            valid: Start and end of its validity, relative to now.
        """
        now = datetime.now(timezone.utc)
        made = self._ca.issue_cert(
            *(hosts or ("localhost", "127.0.0.1")), not_before=now + valid[0], not_after=now + valid[1]
        )
        pair = Pair(self._folder / f"{name}.crt", self._folder / f"{name}.key")
        pair.cert.write_bytes(b"".join(blob.bytes() for blob in made.cert_chain_pems))
        made.private_key_pem.write_to_path(pair.key)
        return pair

    def believing(self, own: Pair | None = None, token: str | None = None) -> Credentials:
        """Credentials of a client that trusts only this authority."""
        cert, key = own or (None, None)
        return Credentials(token=token, tls_ca=self.file, tls_cert=cert, tls_key=key)

    def channel(self, address: str) -> grpc.Channel:
        """A channel that trusts only this authority."""
        return grpc.secure_channel(address, grpc.ssl_channel_credentials(self.file.read_bytes()))
