"""Tokens and TLS of the client, against the real server."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from wattwise import AsyncClient, BatchSizeOptimizer, Client, Credentials, v1
from wattwise.commands.main import main
from wattwise.errors import (
    CredentialsError,
    PermissionDeniedError,
    ServerUnavailableError,
    TrainFailError,
    UnauthenticatedError,
    UntrustedServerError,
)
from wattwise.rpc.address import is_loopback, is_this_machine
from wattwise_server.security.tokens import Role

from tests.client.test_files import SPECIAL
from tests.client.training.script import StepMonitor, job_spec
from tests.credentials import DAY, Authority, Pair, issue
from tests.live_server import LiveServer
from tests.waiting import wait_until

SECRET = "a-secret-that-must-not-be-shown"  # noqa: S105 - accepted by no server


@dataclass
class Guarded:
    """A server with TLS that requires client certificates and tokens, and credentials that it accepts."""

    live: LiveServer
    authority: Authority
    own: Pair
    trainer: str
    operator: str

    @property
    def address(self) -> str:
        """Its address."""
        return self.live.address

    def credentials(self, token: str) -> Credentials:
        """All that the server requires, with this token."""
        return self.authority.believing(self.own, token)

    def variables(self, token: str) -> dict[str, str]:
        """The same as environment variables."""
        return {
            "WATTWISE_TOKEN": token,
            "WATTWISE_TLS_CA": str(self.authority.file),
            "WATTWISE_TLS_CERT": str(self.own.cert),
            "WATTWISE_TLS_KEY": str(self.own.key),
        }


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    """One server for all tests of the module."""
    folder = tmp_path_factory.mktemp("guarded")
    authority, tokens = Authority(folder), folder / "server.tokens"
    pair = authority.issue("server")
    issued = [issue(tokens, role, "test") for role in (Role.TRAINER, Role.OPERATOR)]
    server = Guarded(LiveServer(folder), authority, authority.issue("trainer", "trainer"), *issued)
    try:
        server.live.start(
            *("--tls-cert", str(pair.cert), "--tls-key", str(pair.key), "--tls-client-ca", str(authority.file)),
            *("--tokens", str(tokens)),
        )
        yield server
    finally:
        server.live.close()


@pytest.fixture
def stopped(tmp_path: Path) -> Iterator[LiveServer]:
    """A server that is not started yet."""
    with LiveServer(tmp_path) as live:
        yield live


def start_with(live: LiveServer, pair: Pair) -> None:
    """Starts the server with this certificate."""
    live.start("--tls-cert", str(pair.cert), "--tls-key", str(pair.key))


def train(server: Guarded, credentials: Credentials | None) -> float:
    """Trains one epoch and returns its cost."""
    with BatchSizeOptimizer(server.address, job_spec(), monitor=StepMonitor(), credentials=credentials) as bso:
        bso.get_batch_size()
        bso.on_train_begin()
        bso.on_evaluate(0.95)
        assert bso.decision is not None
        assert bso.decision.cost is not None
        return bso.decision.cost


def test_training_with_credentials(guarded: Guarded, monkeypatch: pytest.MonkeyPatch) -> None:
    """Credentials work as an argument and as environment variables."""
    assert train(guarded, guarded.credentials(guarded.trainer)) == 10
    for name, value in guarded.variables(guarded.trainer).items():
        monkeypatch.setenv(name, value)
    assert train(guarded, None) == 10


def test_stream_with_credentials(guarded: Guarded) -> None:
    """The stream of results carries the token, as all calls do."""
    with Client(guarded.address, credentials=guarded.credentials(guarded.trainer)) as client:
        trial = client.get_next_batch_size(client.register_job(job_spec()).job.spec.job_id).trial
        result = v1.TrainingResult(
            trial=trial.id, measurement=v1.Measurement(time_seconds=1, energy_joules=10, metric=0.95, epoch=1)
        )
        decisions = list(client.stream_results(iter([v1.StreamResultsRequest(result=result)])))
    assert [decision.converged for decision in decisions] == [True]


def test_token_replaced_during_training(stopped: LiveServer, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A training whose token is revoked continues, logs one warning, and delivers its result with the next token."""
    tokens, file = tmp_path / "server.tokens", tmp_path / "token"
    file.write_text(issue(tokens, Role.TRAINER, "test"))
    stopped.start("--tokens", str(tokens))

    def warnings() -> list[str]:
        return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]

    spec = job_spec()
    with BatchSizeOptimizer(
        stopped.address, spec, monitor=StepMonitor(), report_timeout=1, credentials=Credentials(token_file=file)
    ) as bso:
        bso.get_batch_size()
        bso.on_train_begin()
        tokens.write_text("")
        wait_until(lambda: "no tokens" in stopped.log.read_text())
        bso.on_evaluate(0.1)
        wait_until(lambda: bool(warnings()))
        file.write_text(issue(tokens, Role.TRAINER, "test"))
        wait_until(lambda: bso.decision is not None)
        assert bso.decision is not None
        assert bso.decision.cost == 10
        assert len(warnings()) == 1


def test_rejected_tokens(guarded: Guarded) -> None:
    """A missing, an unknown and an unauthorised token each raise their exception, and none is retried."""
    for token, hint in ((None, "WATTWISE_TOKEN"), (SECRET, "unknown token")):
        credentials = replace(guarded.credentials(""), token=token)
        with Client(guarded.address, credentials=credentials) as client, pytest.raises(UnauthenticatedError) as caught:
            client.register_job(job_spec())
        assert hint in str(caught.value)
        assert guarded.address in str(caught.value)
        assert not caught.value.retryable
    with Client(guarded.address, credentials=guarded.credentials(guarded.trainer)) as client:
        with pytest.raises(PermissionDeniedError) as denied:
            client.delete_job("test-1")
        with pytest.raises(PermissionDeniedError, match="another"):
            client.register_job(job_spec(job_id_prefix="another", job_id="another-1"))
    assert denied.value.reason == "ERROR_REASON_PERMISSION_DENIED"
    assert denied.value.metadata["role"] == "trainer"


def test_advice_that_a_trainer_may_not_read(guarded: Guarded, caplog: pytest.LogCaptureFixture) -> None:
    """The last attempt of a trainer's token ends with what usually helps; nothing is said about the refused call."""
    credentials = guarded.credentials(guarded.trainer)
    job = job_spec(job_id="test-advice", max_epochs=1)
    bso = BatchSizeOptimizer(guarded.address, job, monitor=StepMonitor(), credentials=credentials)
    attempts = bso.attempts(1)
    for _ in (attempt := next(attempts)).epochs():
        attempt.on_evaluate(0.1)
    with pytest.raises(TrainFailError) as missed:
        next(attempts)
    assert "max_tries" in str(missed.value)
    assert "permission" not in str(missed.value).lower()
    assert "GetJob" not in caplog.text


def test_jobs_command(
    guarded: Guarded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`wattwise jobs` reads credentials from options first, then from environment variables."""
    file = tmp_path / "token"
    file.write_text(f"{guarded.operator}\n")
    monkeypatch.setenv("WATTWISE_SERVER", guarded.address)
    for name, value in guarded.variables(SECRET).items():
        monkeypatch.setenv(name, value)
    assert main(["jobs", "list"]) == 1
    assert "unknown token" in capsys.readouterr().err
    assert main(["jobs", "list", "--token-file", str(file)]) == 0
    assert main(["jobs", "list", "--token-file", str(file), "--tls-ca", "/nowhere.pem"]) == 1
    assert "/nowhere.pem (tls_ca)" in capsys.readouterr().err


def test_token_is_never_shown(guarded: Guarded, caplog: pytest.LogCaptureFixture) -> None:
    """The token appears in no log line at any level, no error, and no repr of the client's attributes."""
    caplog.set_level(logging.DEBUG)
    credentials = guarded.credentials(SECRET)
    bso = BatchSizeOptimizer(guarded.address, job_spec(), monitor=StepMonitor(), credentials=credentials)
    with pytest.raises(UnauthenticatedError) as caught:
        bso.get_batch_size()
    with Client(guarded.address, credentials=credentials) as client, pytest.raises(UnauthenticatedError):
        client.get_job("test-1")
    cause = caught.value.__context__
    shown = [repr(credentials), str(credentials), repr(caught.value), repr(cause), str(cause), repr(vars(bso))]
    connection = client._connection  # noqa: SLF001 - no attribute shows it
    shown += [repr(vars(client)), repr(vars(connection)), caplog.text]
    assert not any(SECRET in text for text in shown)


@pytest.mark.parametrize(
    "token",
    [f"{SECRET} and more", f"{SECRET}\nx-other: 1", "", "  ", "ключ"],
    ids=["blank", "line", "none", "blanks", "letters"],
)
def test_malformed_token_is_not_sent(tmp_path: Path, token: str) -> None:
    """A token with invalid characters, or such a file, is rejected before gRPC sees it, and not shown."""
    file = tmp_path / "token"
    file.write_text(token)
    candidates = [Credentials(token_file=file)] + ([Credentials(token=token)] if token else [])
    for credentials in candidates:
        with Client("localhost:1", credentials=credentials) as client, pytest.raises(CredentialsError) as caught:
            client.get_job("test-1")
        assert SECRET not in str(caught.value)


async def test_clients_of_several_tokens_share_the_channels(guarded: Guarded) -> None:
    """`with_token` sends another token or none over the same channel, and never in clear text to another machine."""
    async with AsyncClient(guarded.address, credentials=guarded.credentials(guarded.trainer)) as client:
        assert (await client.get_server_info()).role == v1.ROLE_TRAINER
        for token in (SECRET, None):
            with pytest.raises(UnauthenticatedError):
                await client.with_token(token).get_job("test-1")
        assert (await client.get_server_info()).role == v1.ROLE_TRAINER
    plain = Credentials(token=SECRET)
    async with AsyncClient("wattwise.example:50051", credentials=plain) as client:
        with pytest.raises(CredentialsError, match="clear text") as caught:
            await client.get_job("test-1")
        assert SECRET not in str(caught.value)


def test_token_file_is_followed(guarded: Guarded, tmp_path: Path) -> None:
    """A new token in the file is sent with the next call; if the file is deleted, the last token stays in use."""
    file = tmp_path / "token"
    file.write_text(guarded.trainer)
    credentials = replace(guarded.credentials(""), token=None, token_file=file)
    with Client(guarded.address, credentials=credentials) as client:
        with pytest.raises(PermissionDeniedError):
            list(client.jobs())
        (tmp_path / "next").write_text(guarded.operator)
        (tmp_path / "next").replace(file)
        list(client.jobs())
        file.unlink()
        list(client.jobs())
    with (
        Client(guarded.address, credentials=credentials) as client,
        pytest.raises(CredentialsError, match="No such file"),
    ):
        list(client.jobs())


@pytest.mark.parametrize("address", ["192.0.2.1:50051", "wattwise.example:50051", "[2001:db8::1]:50051"])
def test_token_is_not_sent_in_clear_text(address: str) -> None:
    """Without TLS the token is not sent to another machine, unless `insecure` is set."""
    with Client(address, timeout=0.1, retry=False, credentials=Credentials(token=SECRET)) as client:
        with pytest.raises(CredentialsError, match="in clear text") as caught:
            client.get_job("test-1")
        assert SECRET not in str(caught.value)
    allowed = Credentials(token=SECRET, insecure=True)
    with (
        Client(address, timeout=0.1, retry=False, credentials=allowed) as client,
        pytest.raises(ServerUnavailableError),
    ):
        client.get_job("test-1")


def test_loopback_addresses() -> None:
    """Loopback names, loopback IP addresses and Unix sockets are recognised, and nothing that looks like them."""
    for address in (
        *(
            "localhost:1",
            "LOCALHOST:1",
            "127.0.0.1:1",
            "127.9.9.9:1",
            "[::1]:1",
            "unix:/run/x",
            "localhost",
            "127.0.0.1",
        ),
        *("dns:///localhost:1", "dns:localhost:1", "ipv4:127.0.0.1:1", "ipv6:[::1]:1", "localhost.:1"),
        *("[::1%lo]:1", "[0:0:0:0:0:0:0:1]:1", "[::ffff:127.0.0.1]:1", "ipv6:[::ffff:127.0.0.1]:1"),
    ):
        assert is_loopback(address), address
        assert is_this_machine(address), address
    for address in (
        *(
            "localhost.example:1",
            "127.0.0.1.example:1",
            "0.0.0.0:1",
            "[::]:1",
            "::1:50051",
            "",
            "10.0.0.1",
            "xds:///localhost",
        ),
        *("dns://192.0.2.1/localhost:1", "dns://[::1]/elsewhere:1", "ipv6:[::1]:1,[2001:db8::1]:1"),
        *("127.0.0.1%evil.example:1", "localhost%evil.example:1", "[127.0.0.1%a]:1"),
        *("ipv4:127.0.0.1:1,192.0.2.1:1", "localhost:1,192.0.2.1:1", "localhost@elsewhere:1"),
    ):
        assert not is_loopback(address), address


def test_what_is_this_machine_needs_no_proxy() -> None:
    """By its names and its short and unspecified addresses too, of which a token must not be sure."""
    short = socket.gethostname().partition(".")[0]
    for address in (
        *("a.localhost:1", "ip6-localhost:1", "localhost.localdomain:1", "127.1:1", "0:1", "0.0.0.0:1", "[::]:1"),
        *(f"{socket.gethostname()}:1", f"dns:///{short.upper()}.:1"),
    ):
        assert is_this_machine(address), address
        assert not is_loopback(address), address
    for address in (
        "10.0.0.1:1",
        "localhost.example:1",
        "127.0.0.1.example:1",
        "127:1",
        "127.0.0.1%a:1",
        "dns://a/localhost:1",
        "",
    ):
        assert not is_this_machine(address), address


@pytest.mark.parametrize(
    ("hosts", "valid", "cause"),
    [
        (("elsewhere.example",), (-DAY, DAY), "for another host name"),
        (("localhost", "127.0.0.1"), (-9 * DAY, -DAY), "has expired"),
        (("localhost", "127.0.0.1"), (DAY, 9 * DAY), "not valid yet"),
    ],
)
def test_invalid_certificate(
    stopped: LiveServer, tmp_path: Path, hosts: tuple[str, ...], valid: tuple[object, object], cause: str
) -> None:
    """A certificate for another host name, an expired one and a future one end the first call with the cause."""
    authority = Authority(tmp_path)
    start_with(stopped, authority.issue("server", *hosts, valid=valid))  # type: ignore[arg-type]
    bso = BatchSizeOptimizer(stopped.address, job_spec(), monitor=StepMonitor(), credentials=authority.believing())
    with pytest.raises(UntrustedServerError, match=cause) as caught:
        bso.get_batch_size()
    assert stopped.address in str(caught.value)
    assert not caught.value.retryable


def test_unknown_authority(guarded: Guarded, tmp_path: Path) -> None:
    """A server with an unknown authority is not called, neither with `tls_ca` nor with gRPC's own list."""
    for credentials in (Authority(tmp_path).believing(), Credentials(tls=True)):
        with Client(guarded.address, credentials=credentials) as client, pytest.raises(UntrustedServerError) as caught:
            client.get_job("test-1")
        assert "WATTWISE_TLS_CA" in str(caught.value)


def test_tls_on_one_side_only(server: LiveServer, guarded: Guarded) -> None:
    """The error says that the server has no TLS, or that it may require TLS or a client certificate."""
    with (
        Client(server.address, credentials=Credentials(tls=True)) as client,
        pytest.raises(UntrustedServerError, match="does not use TLS"),
    ):
        client.get_job("test-1")
    for credentials in (Credentials(), guarded.authority.believing()):
        with (
            Client(guarded.address, retry=False, credentials=credentials) as client,
            pytest.raises(ServerUnavailableError, match="may require TLS"),
        ):
            client.get_job("test-1")


def test_unusable_files(tmp_path: Path) -> None:
    """A missing file, one with other content, and a certificate without its key: each error names the file."""
    authority = Authority(tmp_path)
    pair, other = authority.issue("trainer"), authority.issue("other")
    rubbish = tmp_path / "rubbish.pem"
    rubbish.write_text("rubbish")
    for credentials, fault in (
        (Credentials(tls_ca="/nowhere.pem"), "/nowhere.pem"),
        (Credentials(tls_ca=rubbish), "no PEM certificate"),
        (Credentials(tls_cert=pair.cert), "tls_cert is set without"),
        (Credentials(tls_key=pair.key), "tls_key is set without"),
        (Credentials(tls_cert=pair.cert, tls_key=other.key), "KEY_VALUES_MISMATCH"),
        (Credentials(tls_cert=rubbish, tls_key=pair.key), "(tls_cert) and"),
        (Credentials(tls_cert=pair.cert, tls_key="/nowhere.key"), "/nowhere.key"),
        (Credentials(tls=False, tls_ca=authority.file), "TLS is off"),
    ):
        with Client("localhost:1", credentials=credentials) as client, pytest.raises(CredentialsError) as caught:
            client.get_job("test-1")
        assert fault in str(caught.value)


def test_variables() -> None:
    """Each variable sets the argument of the same name; an empty variable counts as unset."""
    names = ("TOKEN", "TOKEN_FILE", "TLS", "TLS_CA", "TLS_CERT", "TLS_KEY", "INSECURE")
    assert Credentials.from_env({}) == Credentials.from_env({f"WATTWISE_{name}": "" for name in names}) == Credentials()
    variables = {f"WATTWISE_{name}": name for name in names} | {"WATTWISE_TLS": "1", "WATTWISE_INSECURE": "true"}
    assert Credentials.from_env(variables) == Credentials(
        "TOKEN", "TOKEN_FILE", tls=True, tls_ca="TLS_CA", tls_cert="TLS_CERT", tls_key="TLS_KEY", insecure=True
    )
    with pytest.raises(CredentialsError, match="WATTWISE_TLS='maybe'"):
        Credentials.from_env({"WATTWISE_TLS": "maybe"})


@pytest.mark.parametrize("kind", SPECIAL)
@pytest.mark.parametrize("name", ["token_file", "tls_ca", "tls_cert"])
def test_file_that_is_none(tmp_path: Path, name: str, kind: str) -> None:
    """A trainer does not wait for a pipe, and reads no device: the file is named."""
    path = tmp_path / "file"
    SPECIAL[kind](path)
    both: dict[str, Any] = {name: path, "tls_key": path} if name == "tls_cert" else {name: path}
    with (
        Client("localhost:1", retry=False, credentials=Credentials(**both)) as client,
        pytest.raises(CredentialsError, match=str(path)),
    ):
        client.get_job("test-1")


def test_token_file_that_becomes_a_pipe(guarded: Guarded, tmp_path: Path) -> None:
    """The last token stays in use."""
    file = tmp_path / "token"
    file.write_text(f"\ufeff{guarded.operator}\r\n")
    credentials = replace(guarded.credentials(""), token=None, token_file=file)
    with Client(guarded.address, credentials=credentials) as client:
        list(client.jobs())
        file.unlink()
        os.mkfifo(file)
        list(client.jobs())


@pytest.mark.parametrize("name", Credentials.__dataclass_fields__)
def test_control_character_in_a_variable(name: str) -> None:
    """The variable is named, and its value is not shown."""
    variable = f"WATTWISE_{name.upper()}"
    with pytest.raises(CredentialsError, match=variable) as refused:
        Credentials.from_env({variable: f"{SECRET}\r"})
    assert SECRET not in str(refused.value)
