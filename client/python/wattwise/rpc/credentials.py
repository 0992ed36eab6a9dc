"""How a client authenticates, and which server it trusts: the token and the TLS files."""

from __future__ import annotations

import os
import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

import grpc

from wattwise.errors import CredentialsError
from wattwise.rpc.address import is_loopback
from wattwise.variables import read_switch, read_variable

if TYPE_CHECKING:
    from pathlib import Path

Metadata: TypeAlias = "tuple[tuple[str, str], ...]"
File: TypeAlias = "str | os.PathLike[str]"


@dataclass(frozen=True)
class Credentials:
    """A token and the files of TLS. Nothing is sent or read before the first call.

    Without arguments there is no token and no TLS, for a server on this machine that requires neither. The default of
    `Client` and `BatchSizeOptimizer` is `Credentials.from_env()`.

    Args:
        token: the output of `wattwise token create`; it is never logged, and `repr` hides it.
        token_file: file that contains only the token; read again when it changes, so that a token can be replaced
            during a training. Ignored if `token` is set.
        tls: whether to use TLS; None uses TLS if any of the files below is set.
        tls_ca: PEM file of the authorities to trust; None trusts gRPC's built-in list of public authorities.
        tls_cert: PEM file of the client's certificate, for a server that requires one.
        tls_key: PEM file of its private key, without a passphrase.
        insecure: send the token without TLS to another machine too, where it can be intercepted.
    """

    token: str | None = field(default=None, repr=False)
    token_file: File | None = None
    tls: bool | None = None
    tls_ca: File | None = None
    tls_cert: File | None = None
    tls_key: File | None = None
    insecure: bool = False

    @classmethod
    def from_env(cls, variables: Mapping[str, str] | None = None) -> Credentials:
        """Reads `WATTWISE_TOKEN`, `_TOKEN_FILE`, `_TLS`, `_TLS_CA`, `_TLS_CERT`, `_TLS_KEY` and `_INSECURE`.

        Args:
            variables: the variables; None is the environment. An empty variable counts as unset.

        Raises:
            CredentialsError: if `WATTWISE_TLS` or `WATTWISE_INSECURE` is neither 1 nor 0, or a variable has a control
                character.
        """
        variables = os.environ if variables is None else variables
        names = cls.__dataclass_fields__
        texts = {name: read_variable(f"WATTWISE_{name.upper()}", CredentialsError, variables) or None for name in names}
        return cls(
            token=texts["token"],
            token_file=texts["token_file"],
            tls=read_switch("WATTWISE_TLS", CredentialsError, variables),
            tls_ca=texts["tls_ca"],
            tls_cert=texts["tls_cert"],
            tls_key=texts["tls_key"],
            insecure=read_switch("WATTWISE_INSECURE", CredentialsError, variables) or False,
        )

    def uses_tls(self) -> bool:
        """Returns whether the channel is encrypted.

        Raises:
            CredentialsError: if TLS is disabled although a file for it is set.
        """
        files = [name for name in ("tls_ca", "tls_cert", "tls_key") if getattr(self, name)]
        if files and self.tls is False:
            raise CredentialsError(f"TLS is off but {files[0]} is set: remove one of the two")
        return bool(files) if self.tls is None else self.tls

    def channel_credentials(self) -> grpc.ChannelCredentials | None:
        """Returns the credentials of a gRPC channel; None for a channel without TLS.

        Raises:
            CredentialsError: if a file cannot be read or used; the message says which one and what to do.
        """
        if not self.uses_tls():
            return None
        from pathlib import Path  # noqa: PLC0415 - slow to import, and not needed without TLS

        if bool(self.tls_cert) != bool(self.tls_key):
            present, missing = ("tls_cert", "tls_key") if self.tls_cert else ("tls_key", "tls_cert")
            raise CredentialsError(f"{present} is set without {missing}: set both, a certificate and its key")
        authorities = _read_authorities(Path(self.tls_ca)) if self.tls_ca else None
        if not self.tls_cert or not self.tls_key:
            return grpc.ssl_channel_credentials(authorities)
        chain, key = _read_pair(Path(self.tls_cert), Path(self.tls_key))
        return grpc.ssl_channel_credentials(authorities, key, chain)

    def bearer_token(self, address: str) -> BearerToken | None:
        """Returns the token of all calls to a server; None without a token.

        Raises:
            CredentialsError: if the token would be sent in clear text to another machine, or cannot be read.
        """
        if not self.token and not self.token_file:
            return None
        if not (self.uses_tls() or self.insecure or is_loopback(address)):
            raise CredentialsError(
                f"refusing to send the token to {address} in clear text: enable TLS (WATTWISE_TLS=1 or "
                "Credentials(tls=True)), or allow it if the network is trusted (WATTWISE_INSECURE=1 or "
                "Credentials(insecure=True))"
            )
        return BearerToken(self.token, self.token_file)


class BearerToken:
    """The call metadata with the token, updated when the token's file changes.

    Args:
        token: the token; None reads it from the file.
        file: file that contains only the token.

    Raises:
        CredentialsError: if there is no token, or it is malformed.
    """

    def __init__(self, token: str | None, file: File | None) -> None:
        from pathlib import Path  # noqa: PLC0415 - slow to import, and not needed without a token

        self._file = None if token or file is None else Path(file)
        self._version = _version(self._file)
        self._metadata = _bearer(token, "the token") if token else ()
        if self._file is not None:
            self._metadata = _read_token(self._file)

    def metadata(self) -> Metadata:
        """Returns the metadata of a call; unchanged while the file is missing or invalid."""
        if self._file is not None and (version := _version(self._file)) != self._version:
            try:
                self._metadata = _read_token(self._file)
            except CredentialsError:
                return self._metadata
            self._version = version
        return self._metadata


def _read_token(file: Path) -> Metadata:
    text = _read(file, "token_file").removeprefix(b"\xef\xbb\xbf").decode("ascii", errors="replace")
    return _bearer(text, f"the content of {file}")


def _bearer(token: str, what: str) -> Metadata:
    token = token.strip()
    # Checked here because gRPC's own error would include the token.
    if not re.fullmatch(r"[A-Za-z0-9._~+/=-]+", token):
        raise CredentialsError(
            f"{what} is not a valid token: it is empty or contains invalid characters; copy the output of "
            "`wattwise token create` again"
        )
    return (("authorization", f"Bearer {token}"),)


def _version(file: Path | None) -> tuple[int, int, int] | None:
    """Returns a value that changes whenever the file does."""
    try:
        found = file.stat() if file else None
    except OSError:
        return None
    return found and (found.st_mtime_ns, found.st_size, found.st_ino)


def _read_authorities(path: Path) -> bytes:
    pem = _read(path, "tls_ca")
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cadata=pem.decode("ascii"))
    except (ssl.SSLError, ValueError):
        raise CredentialsError(
            f"{path} (tls_ca) contains no PEM certificate: it should start with -----BEGIN CERTIFICATE-----"
        ) from None
    return pem


def _read_pair(cert: Path, key: Path) -> tuple[bytes, bytes]:
    chain, private = _read(cert, "tls_cert"), _read(key, "tls_key")
    try:
        # The empty password prevents a prompt at the terminal for a key that has a passphrase.
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_cert_chain(cert, key, password="")
    except (ssl.SSLError, ValueError) as error:
        why = getattr(error, "reason", None) or str(error)
        raise CredentialsError(
            f"{cert} (tls_cert) and {key} (tls_key) are not a certificate and its key ({why}): both must be PEM files, "
            "must belong together, and the key must have no passphrase"
        ) from None
    return chain, private


def _read(path: Path, name: str) -> bytes:
    from wattwise.files import USUAL, FileError, read_bytes  # noqa: PLC0415 - as slow to import as Path

    try:
        return read_bytes(path, USUAL)
    except FileNotFoundError as error:
        raise CredentialsError(f"cannot read {path} ({name}): {error.strerror}; choose a readable file") from None
    except FileError as error:
        raise CredentialsError(f"cannot use the file of {name}: {error}") from None
