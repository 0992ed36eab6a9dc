"""Which addresses the server listens on with which protection."""

from __future__ import annotations

from pathlib import Path

import pytest
from wattwise_server.config import Security
from wattwise_server.errors import StartError
from wattwise_server.security.exposure import check_exposure

from tests.credentials import Authority
from tests.jobs import Trainer
from tests.live_server import LiveServer
from tests.server.commands.test_serve import refuse

CLEAR, OPEN = "is not encrypted", "any client may delete every job"


def started(folder: Path, *arguments: str) -> str:
    """Starts a server; returns its log. A later --address overrides the default one."""
    with LiveServer(folder) as live:
        live.start(*arguments)
        return live.log.read_text()


@pytest.fixture
def tls(tmp_path: Path) -> list[str]:
    """The options that enable TLS."""
    pair = Authority(tmp_path).issue("server")
    return ["--tls-cert", str(pair.cert), "--tls-key", str(pair.key)]


@pytest.fixture
def tokens(tmp_path: Path) -> list[str]:
    """The options that enable tokens."""
    (tmp_path / "server.tokens").touch()
    return ["--tokens", str(tmp_path / "server.tokens")]


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "localhost", "[::1]"])
def test_loopback_needs_nothing(host: str) -> None:
    """A loopback address, under any name, needs neither TLS nor tokens."""
    check_exposure(f"{host}:0", Security(), None)


@pytest.mark.parametrize("host", ["0.0.0.0", "[::]", "0", "192.0.2.1"])  # noqa: S104 - it is refused
def test_elsewhere_is_refused(host: str) -> None:
    """Any other host is refused, with the reasons and the remedy."""
    with pytest.raises(StartError) as caught:
        check_exposure(f"{host}:50051", Security(), None)
    for words in (f"{CLEAR} and {OPEN}:", "--tls-cert", "--tokens", "127.0.0.1", "--insecure"):
        assert words in str(caught.value)


def test_tls_alone_and_tokens_alone_are_refused(tmp_path: Path, tls: list[str], tokens: list[str]) -> None:
    """Beyond loopback, TLS without tokens and tokens without TLS are refused, each for what is missing."""
    everywhere = ("--address", "0.0.0.0:0")
    error = refuse(*everywhere, *tls, folder=tmp_path)
    assert OPEN in error
    assert CLEAR not in error
    error = refuse(*everywhere, *tokens, folder=tmp_path)
    assert CLEAR in error
    assert OPEN not in error


def test_tls_with_tokens_or_client_certificates_is_enough(tmp_path: Path, tls: list[str], tokens: list[str]) -> None:
    """Beyond loopback, TLS with tokens or with client certificates starts without a warning."""
    everywhere = ("--address", "0.0.0.0:0")
    for more in (tokens, ["--tls-client-ca", str(tmp_path / "ca.pem")]):
        assert "insecure address" not in started(tmp_path, *everywhere, *tls, *more)


def test_insecure_is_spelled_out_and_logged(tmp_path: Path) -> None:
    """With --insecure the server starts beyond loopback and logs a warning; on loopback it logs none."""
    log = started(tmp_path, "--address", "0.0.0.0:0", "--insecure")
    (line,) = [line for line in log.splitlines() if "insecure address" in line]
    assert "WARNING" in line
    assert CLEAR in line
    assert OPEN in line
    (tmp_path / "server.log").unlink()
    assert "insecure address" not in started(tmp_path, "--insecure")
    assert "use 1 or 0" in refuse(folder=tmp_path, WATTWISE_INSECURE="perhaps")
    assert OPEN in refuse("--address", "0.0.0.0:0", folder=tmp_path, WATTWISE_INSECURE="0")


def test_insecure_can_be_a_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """WATTWISE_INSECURE=1 has the effect of --insecure."""
    monkeypatch.setenv("WATTWISE_INSECURE", "1")
    assert "insecure address" in started(tmp_path, "--address", "0.0.0.0:0")


def test_without_token_file_no_token_is_needed(server: LiveServer) -> None:
    """On loopback without a token file every caller may do everything."""
    assert Trainer(server.trainer).next().id.trial_number == 1


@pytest.mark.parametrize(
    ("address", "expected"), [("::1:50051", "in brackets"), ("no.such.host.invalid:1", "cannot be resolved")]
)
def test_bad_host_is_refused(tmp_path: Path, address: str, expected: str) -> None:
    """An invalid host is an error that shows a valid one."""
    assert expected in refuse("--address", address, folder=tmp_path)
