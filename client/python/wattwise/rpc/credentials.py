"""How a client shows who it is, and whom it believes."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from wattwise.errors import CredentialsError

if TYPE_CHECKING:
    import grpc

    from wattwise.rpc.authorization import Authorization

File: TypeAlias = "str | os.PathLike[str]"

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
        from wattwise.rpc.tls import channel_credentials  # noqa: PLC0415 - slow to import, and of no use in clear

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
        from wattwise.rpc.authorization import Authorization  # noqa: PLC0415 - few trainers bring a token

        return Authorization(self.token, self.token_file)


def checked_credentials(given: object) -> Credentials:
    """What was given as credentials.

    Raises:
        CredentialsError: if it is something else, which may be a token and is not shown.
    """
    if not isinstance(given, Credentials):
        raise CredentialsError(f"credentials is something of type {type(given).__name__}; give Credentials(token=...)")
    return given


def is_loopback(address: str) -> bool:
    """Whether what is sent to an address stays on this machine: localhost, 127.0.0.0/8, ::1 or a Unix socket."""
    if address.startswith(("unix:", "unix-abstract:")):
        return True
    # A list of addresses, or a name server to ask, is none of these, whatever it begins with.
    found = re.fullmatch(r"(?:(?:dns|ipv4|ipv6):(?:///)?)?(?:\[([^][]+)\]|([^][:,/]+))(?::\w+)?", address)
    if found is None:
        return False
    host = found[1] or found[2]
    return host.lower() == "localhost" or _is_loopback_ip(host)


def _is_loopback_ip(host: str) -> bool:
    # The module ipaddress would take a trainer longer to import than all else here.
    for family, loopback in ((socket.AF_INET, b"\x7f"), (socket.AF_INET6, b"\0" * 15 + b"\1")):
        try:
            return socket.inet_pton(family, host).startswith(loopback)
        except OSError:  # noqa: PERF203 - there are two
            continue
    return False


def _yes_or_no(given: Mapping[str, str], name: str) -> bool | None:
    text = given.get(name)
    if text is None:
        return None
    if text.lower() not in (*_YES, *_NO):
        raise CredentialsError(f"WATTWISE_{name.upper()} is {text!r}; give 1 or 0")
    return text.lower() in _YES
