"""The settings of the page: where it listens, how browsers reach it, and which server it reads from."""

from __future__ import annotations

import errno
import ipaddress
import os
import re
import socket
import ssl
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from wattwise.errors import WattwiseError
from wattwise.files import read_bytes
from wattwise.rpc.credentials import Credentials

OWN_PATHS = frozenset(
    f"/{name}"
    for name in ("about", "events", "healthz", "job", "live", "login", "logout", "running", "static", "trial")
)
"""The first segments of the page's own paths."""

_LOCAL = re.compile(r"(localhost|127\.0\.0\.1|\[::1\])(:\d{1,5})?", re.ASCII)
_PATH = re.compile(r"(/[\w.~-]+)*/?", re.ASCII)


class SettingsError(WattwiseError):
    """A setting of `wattwise web` is invalid, or would let anyone on the network in."""


@dataclass(frozen=True)
class Settings:
    """Settings of one page.

    Attributes:
        server: address of the server, or of several.
        credentials: how the server is reached; its token is not used, since each visitor has one.
        address: `host:port` to listen on; port 0 takes a free one.
        public_url: the URL by which browsers reach the page behind a proxy, such as `https://ml.example/wattwise`.
            Empty: they reach it at `address`.
        tls_cert: certificate in PEM; enables TLS.
        tls_key: its private key.
        insecure: listen beyond loopback without TLS, and without logins where the server needs no token.
    """

    server: str
    credentials: Credentials = field(default_factory=Credentials)
    address: str = "127.0.0.1:8080"
    public_url: str = ""
    tls_cert: Path | None = None
    tls_key: Path | None = None
    insecure: bool = False

    @property
    def root(self) -> str:
        """The path below which browsers see the page: empty or such as "/wattwise"."""
        return urlsplit(self.public_url).path.rstrip("/")


@dataclass(frozen=True)
class Exposure:
    """Who can reach the page, and how.

    Attributes:
        hosts: the values of the Host header that are accepted, in lower case.
        public: those of them that are in the URL that people open.
        local: whether names of this machine are accepted with any port, since the port may be forwarded: no other
            site can have such a name.
        secure: whether browsers reach this URL over HTTPS.
        needs_login: whether nobody may read without a token, even if the server does not check any.
    """

    hosts: frozenset[str]
    public: frozenset[str]
    local: bool
    secure: bool
    needs_login: bool

    def accepts(self, host: str) -> bool:
        """Returns whether a value of the Host header, in lower case, names this page."""
        return host in self.hosts or (self.local and _is_local(host))

    def scheme(self, host: str, connection: str) -> str:
        """Returns the scheme by which browsers reach the page under a host name.

        Args:
            host: a value of the Host header, in lower case.
            connection: the scheme of the connection itself, which is that of browsers if a port of this machine is
                forwarded. A proxy has the scheme of the public URL.
        """
        if self.local and _is_local(host) and host not in self.public:
            return connection
        return "https" if self.secure else "http"

    def always_https(self, host: str) -> bool:
        """Returns whether browsers must never use HTTP for a host; for localhost that would be all its servers."""
        return self.secure and host in self.public and not _is_loopback(urlsplit(f"//{host}").hostname or "")


def _is_local(host: str) -> bool:
    return _LOCAL.fullmatch(host) is not None


def listen(settings: Settings) -> tuple[socket.socket, str, Exposure]:
    """Opens the port.

    Returns:
        The socket, the URL that people open, and what follows from the address.

    Raises:
        SettingsError: the address is refused, malformed or taken.
    """
    host, port = _split(settings.address)
    tls = _uses_tls(settings)
    public = _check_public(settings.public_url, insecure=settings.insecure)
    addresses = _resolve(host, port, settings.address)
    loopback = all(ipaddress.ip_address(str(where[4][0])).is_loopback for where in addresses)
    if not loopback and not tls and not settings.insecure:
        raise SettingsError(
            f"{settings.address} is reachable from other machines, and traffic, tokens included, is not encrypted: use "
            "--tls-cert and --tls-key, listen on 127.0.0.1 behind a proxy, or accept the risk with --insecure"
        )
    if not public and any(ipaddress.ip_address(str(where[4][0])).is_unspecified for where in addresses):
        raise SettingsError(
            f"{settings.address} is every address of this machine: say by which URL browsers reach the page, with "
            "--public-url, such as --public-url https://wattwise.example:8080"
        )
    sock = _open(addresses[0], settings.address)
    port = int(sock.getsockname()[1])
    scheme = "https" if tls else "http"
    url = settings.public_url.rstrip("/") if public else f"{scheme}://{host}:{port}"
    secure = public.startswith("https") if public else tls
    exposure = Exposure(
        hosts=frozenset(_hosts_of(f"{scheme}://{host}:{port}") | _hosts_of(settings.public_url)),
        public=frozenset(_hosts_of(url)),
        local=loopback,
        secure=secure,
        needs_login=bool(public or not loopback) and not settings.insecure,
    )
    return sock, f"{url}/", exposure


def _uses_tls(settings: Settings) -> bool:
    cert, key = settings.tls_cert, settings.tls_key
    if (cert is None) != (key is None):
        raise SettingsError("--tls-cert and --tls-key belong together: set both, or neither")
    if cert is None or key is None:
        return False
    try:
        for path in (cert, key):
            # OpenSSL would wait for a pipe.
            read_bytes(path)
        # The empty password prevents a prompt at the terminal for a key that has a passphrase.
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(cert, key, password="")
    except OSError as error:
        why = getattr(error, "reason", None) or error.strerror or str(error)
        raise SettingsError(f"cannot use the certificate {cert} with the key {key}: {why}") from None
    except ValueError as error:
        raise SettingsError(f"cannot use the certificate {cert} with the key {key}: {error}") from None
    return True


def _check_public(url: str, *, insecure: bool) -> str:
    """Returns the scheme of the public URL; empty without one."""
    if not url:
        return ""
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        parts = urlsplit("")
    plain = not (parts.query or parts.fragment or parts.username)
    if parts.scheme not in ("http", "https") or not parts.hostname or not plain:
        raise SettingsError(
            f"--public-url {url!r} is invalid: write it as https://ml.example or https://ml.example/path"
        )
    if not _PATH.fullmatch(parts.path) or {".", ".."} & set(parts.path.split("/")):
        raise SettingsError(
            f"the path of --public-url {url!r} is invalid: use names of letters, digits, '-', '_', '.' and '~' between "
            "single slashes, such as /wattwise"
        )
    if (path := parts.path.rstrip("/")) in OWN_PATHS:
        raise SettingsError(
            f"the path of --public-url is {path!r}, which is also a page: where a proxy strips it, the two cannot be "
            "told apart; use another path, such as /wattwise"
        )
    if parts.scheme == "http" and not insecure and not _is_loopback(parts.hostname):
        raise SettingsError(
            f"browsers on other machines would send their tokens to {url} in clear text: use an https URL, or accept "
            "the risk with --insecure"
        )
    return parts.scheme


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _hosts_of(url: str) -> set[str]:
    if not url:
        return set()
    parts = urlsplit(url)
    usual = {"http": 80, "https": 443}[parts.scheme]
    name = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else str(parts.hostname)
    port = parts.port or usual
    return {f"{name}:{port}"} | ({name} if port == usual else set())


def _split(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    good = port.isascii() and port.isdecimal() and len(port) < 6 and int(port) <= 65535
    if not host or not good or (":" in host and (host[0], host[-1]) != ("[", "]")):
        raise SettingsError(
            f"{address!r} is not an address: write host:port, such as 127.0.0.1:8080, with a port from 0 to 65535"
        )
    return host, int(port)


def _resolve(host: str, port: int, address: str) -> list[tuple[int, int, int, str, tuple[object, ...]]]:
    try:
        found = socket.getaddrinfo(host.removeprefix("[").removesuffix("]"), port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        # Python encodes names as IDNA does, which refuses an empty label and one of more than 63 characters.
        raise SettingsError(f"cannot listen on {address}: the host name {host} cannot be resolved") from None
    return [(int(family), int(kind), protocol, name, where) for family, kind, protocol, name, where in found]


def _open(where: tuple[int, int, int, str, tuple[object, ...]], address: str) -> socket.socket:
    sock = socket.socket(where[0], where[1], where[2])
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(where[4])
        sock.listen(128)
    except OSError as error:
        sock.close()
        taken = error.errno == errno.EADDRINUSE
        why = "another process uses the port; stop that process, or" if taken else f"{os.strerror(error.errno or 0)};"
        raise SettingsError(f"cannot listen on {address}: {why} choose another port with --address") from None
    sock.setblocking(False)
    return sock
