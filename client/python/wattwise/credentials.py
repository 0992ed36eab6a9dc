"""How a client shows who it is, and whom it believes."""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from wattwise.errors import CredentialsError

if TYPE_CHECKING:
    import grpc

File: TypeAlias = "str | os.PathLike[str]"
Metadata: TypeAlias = "tuple[tuple[str, str], ...]"

_YES, _NO = ("1", "true", "yes", "on"), ("0", "false", "no", "off")


@dataclass(frozen=True)
class Credentials:
    """A token, and what TLS needs. Nothing of it is sent or read before the first call.

    Without arguments there is neither: for a server on this machine that asks for none. What `Client` and
    `BatchSizeOptimizer` take when they are given none is `Credentials.from_env()`.

    Args:
        token: what `wattwise token create` printed; it is never logged, nor shown by `repr`.
        token_file: file that holds the token alone; read again when it changes, so that a token can be replaced
            while a training runs. A token takes the place of the file.
        tls: whether to talk TLS; None talks TLS if any file below is given.
        tls_ca: PEM file of the authorities that the server's certificate may be of; None is the list of public ones
            that gRPC brings.
        tls_cert: PEM file of the client's certificate, for a server that asks for one.
        tls_key: PEM file of its private key, without a passphrase.
        insecure: send the token even where it can be read on the way: without TLS to another machine.
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
        """What `WATTWISE_TOKEN`, `_TOKEN_FILE`, `_TLS`, `_TLS_CA`, `_TLS_CERT`, `_TLS_KEY` and `_INSECURE` say.

        Args:
            variables: where to look; None is the environment. One that is empty is as one that is not there.

        Raises:
            CredentialsError: if one that is 1 or 0 is neither.
        """
        where = os.environ if variables is None else variables
        given = {k.removeprefix("WATTWISE_").lower(): v for k, v in where.items() if v}
        return cls(
            token=given.get("token"),
            token_file=given.get("token_file"),
            tls=_yes_or_no(given, "tls"),
            tls_ca=given.get("tls_ca"),
            tls_cert=given.get("tls_cert"),
            tls_key=given.get("tls_key"),
            insecure=_yes_or_no(given, "insecure") or False,
        )

    def uses_tls(self) -> bool:
        """Whether the channel is encrypted.

        Raises:
            CredentialsError: if TLS is off although there are files for it.
        """
        files = [name for name in ("tls_ca", "tls_cert", "tls_key") if getattr(self, name)]
        if files and self.tls is False:
            raise CredentialsError(f"TLS is off and {files[0]} is given: leave one of the two out")
        return bool(files) if self.tls is None else self.tls

    def channel_credentials(self) -> grpc.ChannelCredentials | None:
        """What gRPC opens the channel with; None is in clear.

        Raises:
            CredentialsError: if a file cannot be read or is not what it should be; says which and what to do.
        """
        if not self.uses_tls():
            return None
        from wattwise.tls import channel_credentials  # noqa: PLC0415 - slow to import, and of no use in clear

        return channel_credentials(self.tls_ca, self.tls_cert, self.tls_key)

    def authorization(self, address: str) -> Authorization | None:
        """What every call to a server carries; None if there is no token.

        Raises:
            CredentialsError: if others could read the token on the way; or there is none where there should be one.
        """
        if not self.token and not self.token_file:
            return None
        if not (self.uses_tls() or self.insecure or is_loopback(address)):
            raise CredentialsError(
                f"the token is not sent to {address} in clear, where others could read it: turn TLS on (WATTWISE_TLS=1 "
                "or Credentials(tls=True)), or spell out that nobody else is on the way (WATTWISE_INSECURE=1 or "
                "Credentials(insecure=True))"
            )
        return Authorization(self.token, self.token_file)


class Authorization:
    """The metadata that carries a token, kept up with its file.

    Args:
        token: the token; None reads it from the file.
        file: holds the token alone.

    Raises:
        CredentialsError: if there is no token, or it cannot be one.
    """

    def __init__(self, token: str | None, file: File | None) -> None:
        self._file = None if token or file is None else Path(file)
        self._seen: tuple[int, int, int] | None = None
        self._metadata: Metadata = _metadata(token, "the token") if token else ()
        if self._file is not None:
            self._seen = _look(self._file)
            self._metadata = self._read(self._file)

    def metadata(self) -> Metadata:
        """The metadata of a call; while the file is missing or spoilt, as it was before."""
        if self._file is not None and (seen := _look(self._file)) != self._seen:
            try:
                self._metadata = self._read(self._file)
            except CredentialsError:
                return self._metadata
            self._seen = seen
        return self._metadata

    @staticmethod
    def _read(file: Path) -> Metadata:
        try:
            text = file.read_text(encoding="ascii")
        except OSError as error:
            raise CredentialsError(f"cannot read the token file {file}: {error.strerror}") from None
        except UnicodeDecodeError:
            raise CredentialsError(
                f"{file} is no token file: it should hold what wattwise token create printed"
            ) from None
        return _metadata(text, f"what {file} holds")


def is_loopback(address: str) -> bool:
    """Whether what is sent to an address stays on this machine: localhost, 127.0.0.0/8, ::1 or a Unix socket."""
    if address.startswith(("unix:", "unix-abstract:")):
        return True
    # A list of addresses, or a name server to ask, is none of these, whatever it begins with.
    found = re.fullmatch(r"(?:(?:dns|ipv4|ipv6):(?:///)?)?(?:\[([^][]+)\]|([^][:,/]+))(?::\w+)?", address)
    if found is None:
        return False
    host = found[1] or found[2]
    try:
        return host.lower() == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _metadata(token: str, what: str) -> Metadata:
    token = token.strip()
    # gRPC would show the whole of it in its own error.
    if not re.fullmatch(r"[A-Za-z0-9._~+/=-]+", token):
        raise CredentialsError(
            f"{what} cannot be a token: it is empty, or has blanks or other signs in it; copy it again"
        )
    return (("authorization", f"Bearer {token}"),)


def _look(file: Path) -> tuple[int, int, int] | None:
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def _yes_or_no(given: Mapping[str, str], name: str) -> bool | None:
    text = given.get(name)
    if text is None:
        return None
    if text.lower() not in (*_YES, *_NO):
        raise CredentialsError(f"WATTWISE_{name.upper()} is {text!r}; give 1 or 0")
    return text.lower() in _YES
