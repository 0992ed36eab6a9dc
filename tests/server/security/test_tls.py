"""TLS of the real server, with real certificates."""

from __future__ import annotations

import os
import socket
import ssl
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)
from wattwise import Client
from wattwise.errors import ServerUnavailableError, UntrustedServerError
from wattwise.rpc.credentials import Credentials
from wattwise_server.config import Security
from wattwise_server.errors import StartError
from wattwise_server.security.tls import Certificates

from tests.credentials import DAY, Authority, Pair
from tests.live_server import LiveServer
from tests.server.commands.test_serve import refuse
from tests.waiting import wait_until


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    """The authority that clients trust."""
    return Authority(tmp_path)


@pytest.fixture
def pair(authority: Authority) -> Pair:
    """The server's certificate."""
    return authority.issue("server")


@pytest.fixture
def live(tmp_path: Path) -> Iterator[LiveServer]:
    """A server that is not started yet."""
    with LiveServer(tmp_path) as server:
        yield server


def options(pair: Pair, client_ca: Path | None = None) -> list[str]:
    """The options that enable TLS."""
    server_options = ["--tls-cert", str(pair.cert), "--tls-key", str(pair.key)]
    return [*server_options, "--tls-client-ca", str(client_ca)] if client_ca else server_options


def fault(**files: Path) -> str:
    """The error of settings that cannot be used."""
    with pytest.raises(StartError) as caught:
        Certificates.of(Security(**files))  # type: ignore[arg-type]  # only settings that are files
    return str(caught.value)


def gets_in(address: str, credentials: Credentials) -> bool:
    """Whether a new connection of a client is served."""
    with Client(address, timeout=5, retry=False, credentials=credentials) as client:
        try:
            return not list(client.jobs())
        except ServerUnavailableError:
            return False


def serial(address: str) -> str:
    """The serial number of the certificate that a new connection gets."""
    host, _, port = address.rpartition(":")
    return ssl.get_server_certificate((host, int(port)))


def spoken(address: str, version: ssl.TLSVersion) -> str | None:
    """The version of TLS that a client of this one alone agrees on with a server."""
    host, _, port = address.rpartition(":")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    # The usual level of security has no ciphers for the old versions.
    context.set_ciphers("ALL:@SECLEVEL=0")
    context.minimum_version = context.maximum_version = version
    context.set_alpn_protocols(["h2"])
    with socket.create_connection((host, int(port)), timeout=5) as raw, context.wrap_socket(raw) as wrapped:
        return wrapped.version()


def test_only_tls_is_spoken(live: LiveServer, authority: Authority, pair: Pair) -> None:
    """A client that trusts the server's authority is served; one in plaintext, or that trusts another, is not."""
    live.start(*options(pair))
    assert gets_in(live.address, authority.believing())
    assert not gets_in(live.address, Credentials())
    assert not gets_in(live.address, Authority(live.database.parent, "other").believing())


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_both_versions_of_tls_are_spoken(live: LiveServer, pair: Pair, version: ssl.TLSVersion) -> None:
    """Clients of TLS 1.2 and of 1.3 alone get a connection."""
    assert spoken(live.start(*options(pair)), version) == version.name.replace("_", ".")


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion")
def test_older_versions_of_tls_are_refused(live: LiveServer, pair: Pair) -> None:
    """A client that speaks TLS 1.1 at most gets none."""
    address = live.start(*options(pair))
    with pytest.raises(ssl.SSLError):
        spoken(address, ssl.TLSVersion.TLSv1_1)


def test_mutual_tls_asks_for_a_certificate(live: LiveServer, authority: Authority, pair: Pair) -> None:
    """With --tls-client-ca only clients with a certificate of that authority are served."""
    clients = Authority(live.database.parent, "clients")
    live.start(*options(pair, clients.file))
    assert gets_in(live.address, authority.believing(clients.issue("trainer", "trainer")))
    assert not gets_in(live.address, authority.believing())
    assert not gets_in(live.address, authority.believing(authority.issue("stranger", "trainer")))
    past = clients.issue("past", "trainer", valid=(-9 * DAY, -DAY))
    assert not gets_in(live.address, authority.believing(past))


def test_sighup_brings_new_certificates(live: LiveServer, authority: Authority, pair: Pair) -> None:
    """After SIGHUP new connections get the new certificate, and the new authority checks clients."""
    folder = live.database.parent
    old, new = Authority(folder, "clients"), Authority(folder, "next")
    early, late = old.issue("early", "trainer"), new.issue("late", "trainer")
    live.start(*options(pair, old.file))
    shown = serial(live.address)
    with Client(live.address, credentials=authority.believing(early)) as staying:
        assert list(staying.jobs()) == []
        authority.issue("server")
        old.file.write_bytes(new.file.read_bytes())
        assert gets_in(live.address, authority.believing(early))
        live.hang_up()
        wait_until(lambda: serial(live.address) != shown)
        assert gets_in(live.address, authority.believing(late))
        assert not gets_in(live.address, authority.believing(early))
        assert list(staying.jobs()) == []
    assert live.stop() == 0


def test_bad_new_files_leave_the_old_ones(live: LiveServer, authority: Authority, pair: Pair) -> None:
    """A key that does not match the certificate is logged with what to do; the current ones stay in use."""
    live.start(*options(pair))
    shown = serial(live.address)
    pair.key.write_bytes(authority.issue("another").key.read_bytes())
    live.hang_up()
    wait_until(lambda: "certificates not read" in live.log.read_text())
    (line,) = (line for line in live.log.read_text().splitlines() if "certificates not read" in line)
    assert all(part in line for part in (str(pair.key), str(pair.cert), "SIGHUP"))
    assert serial(live.address) == shown
    assert gets_in(live.address, authority.believing())
    authority.issue("server")
    live.hang_up()
    wait_until(lambda: serial(live.address) != shown)


def test_start_is_refused_without_usable_files(tmp_path: Path, pair: Pair) -> None:
    """The server names the unusable file and exits; options and variables have the same effect."""
    pair.key.write_text("rubbish")
    assert f"{pair.key} (--tls-key)" in refuse(*options(pair), folder=tmp_path)
    error = refuse(folder=tmp_path, WATTWISE_TLS_CERT=str(pair.cert))
    assert "--tls-cert is set without --tls-key" in error


def _replaced(path: Path, made: Callable[[Path], object]) -> None:
    path.unlink()
    made(path)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda pair: pair.cert.unlink(), "cannot read {cert} (--tls-cert): No such file"),
        (lambda pair: pair.key.unlink(), "cannot read {key} (--tls-key): No such file"),
        (lambda pair: _replaced(pair.cert, os.mkfifo), "{cert} is a named pipe"),
        (lambda pair: _replaced(pair.key, lambda path: path.symlink_to("/dev/zero")), "{key} is a device"),
        (lambda pair: pair.cert.write_text("rubbish"), "{cert} (--tls-cert) is not a PEM certificate"),
        (lambda pair: pair.key.write_text("rubbish"), "{key} (--tls-key) is not a PEM private key"),
        (lambda pair: pair.key.write_bytes(pair.cert.read_bytes()), "{key} (--tls-key) is not a PEM private key"),
    ],
)
def test_bad_file_is_named(pair: Pair, change: Callable[[Pair], object], expected: str) -> None:
    """The error names the unusable file, its option and what is wrong."""
    change(pair)
    assert expected.format(cert=pair.cert, key=pair.key) in fault(tls_cert=pair.cert, tls_key=pair.key)


def test_key_of_another_certificate_is_refused(authority: Authority, pair: Pair) -> None:
    """The key must match the certificate."""
    other = authority.issue("another")
    message = fault(tls_cert=pair.cert, tls_key=other.key)
    assert str(other.key) in message
    assert str(pair.cert) in message


def test_key_with_a_passphrase_is_refused(tmp_path: Path, pair: Pair) -> None:
    """A key with a passphrase is refused, because it cannot be entered."""
    locked = tmp_path / "locked.key"
    key = load_pem_private_key(pair.key.read_bytes(), None)
    locked.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"secret")))
    assert "passphrase" in fault(tls_cert=pair.cert, tls_key=locked)


@pytest.mark.parametrize(
    ("option", "expected"),
    [
        ("tls_cert", "--tls-cert is set without --tls-key"),
        ("tls_key", "--tls-key is set without --tls-cert"),
        ("tls_client_ca", "--tls-client-ca is set without --tls-cert and --tls-key"),
    ],
)
def test_incomplete_options_are_refused(option: str, expected: str) -> None:
    """An option that needs another one is refused without it."""
    assert expected in fault(**{option: Path("x.pem")})


def test_bad_authority_of_clients_is_refused(tmp_path: Path, pair: Pair) -> None:
    """A file without authorities would reject every client, and so would a missing one."""
    (tmp_path / "none.pem").write_text("")
    for name in ("none.pem", "missing.pem"):
        error = fault(tls_cert=pair.cert, tls_key=pair.key, tls_client_ca=tmp_path / name)
        assert f"{name} (--tls-client-ca)" in error


def test_newest_of_several_new_certificates_is_used(authority: Authority, pair: Pair) -> None:
    """Connections after two reloads get the second one's certificate, and none gets the first one's."""
    certificates = Certificates(pair.cert, pair.key, None)
    for _ in range(2):
        authority.issue("server")
        certificates.reread()
    taken = certificates.take_reloaded()
    assert taken is not None
    assert taken.chain == pair.cert.read_bytes()
    assert certificates.take_reloaded() is None


@pytest.mark.parametrize(
    ("valid", "expected"),
    [
        ((-9 * DAY, -DAY), "certificate expired"),
        ((DAY, 9 * DAY), "certificate not valid yet"),
        ((-DAY, 9 * DAY), "certificate expires soon"),
    ],
)
def test_validity_is_logged(
    authority: Authority, caplog: pytest.LogCaptureFixture, valid: tuple[timedelta, timedelta], expected: str
) -> None:
    """A certificate that is invalid now or within two weeks is logged, and used anyway."""
    pair = authority.issue("server", valid=valid)
    assert Certificates(pair.cert, pair.key, None).material.chain == pair.cert.read_bytes()
    assert expected in caplog.text


def test_certificate_for_another_host_is_not_trusted(live: LiveServer, authority: Authority) -> None:
    """The client compares the host name."""
    live.start(*options(authority.issue("server", "elsewhere.example")))
    with Client(live.address, credentials=authority.believing()) as client, pytest.raises(UntrustedServerError):
        list(client.jobs())
