"""What is checked before the server starts; a start that fails leaves nothing behind."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry
from wattwise_server.app import run
from wattwise_server.config import Config, Security, check_port, host_and_port
from wattwise_server.errors import StartError
from wattwise_server.observability.metrics_server import MetricsServer
from wattwise_server.security.exposure import check_exposure

from tests.jobs import Trainer
from tests.live_server import LiveServer
from tests.ports import hold_port, port_of
from tests.server.commands.test_serve import refuse


@pytest.fixture
def taken() -> Iterator[str]:
    """An address that is in use."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        held.listen()
        yield f"127.0.0.1:{held.getsockname()[1]}"


def python(code: str, folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Runs a program."""
    return subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
        cwd=folder,
        env={**os.environ, **variables},
    )


def without(package: str, *arguments: str) -> str:
    """A program that is `wattwise serve` where a package is not installed."""
    hide = f"import sys; sys.modules[{package!r}] = None"
    return f"{hide}\nfrom wattwise_server.commands.serve import main\nsys.exit(main({list(arguments)!r}))"


def test_taken_ports_leave_nothing_behind(tmp_path: Path, taken: str) -> None:
    """A taken port is named in one line, with the option that chooses another; neither database nor lock are made."""
    for option in ("--address", "--metrics-address", "--health-address"):
        error = refuse("--address", "127.0.0.1:0", option, taken, folder=tmp_path)
        assert error == (
            f"wattwise serve: cannot listen on {taken}: another process uses the port; stop that process, or choose "
            f"another port with {option}\n"
        )
    assert not list(tmp_path.iterdir())


def test_name_with_one_taken_address(tmp_path: Path, taken: str) -> None:
    """Of localhost all addresses must be free: a client would reach the other program at the one that is taken."""
    address = f"localhost:{taken.rpartition(':')[2]}"
    assert f"cannot listen on {address}: another process" in refuse("--address", address, folder=tmp_path)


@pytest.mark.parametrize(
    ("host", "fact"), [("192.0.2.1", "not an address of this machine"), ("no.invalid", "no.invalid")]
)
def test_host_of_another_machine(host: str, fact: str) -> None:
    """A host that is not this machine's, or that is unknown, is no taken port."""
    with pytest.raises(StartError) as refused:
        check_port(f"{host}:50051", "--address")
    assert fact in str(refused.value)
    assert "--address" in str(refused.value)


def test_waiting_for_a_database_ends_with_a_signal(tmp_path: Path) -> None:
    """A server that starts without its PostgreSQL says so once, and ends when it is asked to."""
    with hold_port() as nobody:
        shown = f"127.0.0.1:{port_of(nobody)}/wattwise"
        url = f"postgresql://postgres:sesame@{shown}"
        command = [sys.executable, "-m", "wattwise_server", "--address", "127.0.0.1:0", "--database", url]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=tmp_path) as process:
            assert process.stderr is not None
            assert "database not reached" in process.stderr.readline()
            process.terminate()
            told = process.stderr.read()
        assert process.returncode == 1
    assert "database not reached" not in told
    assert shown in told
    assert "sesame" not in told


def test_postgres_without_its_package(tmp_path: Path) -> None:
    """A server that lacks the package for PostgreSQL names what to install, and not the password."""
    url = "postgresql://postgres:sesame@127.0.0.1/wattwise"
    done = python(without("asyncpg", "--address", "127.0.0.1:0", "--database", url), tmp_path)
    assert done.returncode == 1
    assert "wattwise[server,postgres]" in done.stderr
    assert "sesame" not in done.stderr


def test_refused_database_leaves_nothing_behind(tmp_path: Path) -> None:
    """Nothing is created beside a file that is not a database."""
    letter = tmp_path / "wattwise.db"
    letter.write_text("this is not a database, but a letter to a friend, long enough to be taken for a header")
    assert "not a Wattwise database" in refuse("--address", "127.0.0.1:0", folder=tmp_path)
    assert list(tmp_path.iterdir()) == [letter]


def test_database_of_a_running_server_keeps_its_lock(server: LiveServer, tmp_path: Path) -> None:
    """A second server that fails to start removes no file of the first one."""
    for _ in range(2):
        arguments = ("--address", "127.0.0.1:0", "--database", f"sqlite:///{server.database}")
        assert "another server uses" in refuse(*arguments, folder=tmp_path)
    Trainer(server.trainer).run(1.0)


async def test_metrics_port_of_a_failed_start_is_closed(tmp_path: Path) -> None:
    """When the database is refused, the metrics port is free again at once."""
    with hold_port() as held:
        port = port_of(held)
        config = Config("127.0.0.1:0", f"sqlite:///{tmp_path}/nowhere/x.db", metrics_address=f"127.0.0.1:{port}")
        for _ in range(2):
            with pytest.raises(StartError, match="there is no folder"):
                await run(config, print)
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port), timeout=5)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--metrics-address", "nowhere"], "write host:port"),
        (["--metrics-address", "127.0.0.1:70000"], "write host:port"),
        (["--metrics-address", "no.such.host.invalid:0"], "cannot listen on no.such.host.invalid:0"),
        (["--log-format", "xml"], "use one of human, json"),
        (["--database", "sqlite:///."], "is a folder"),
    ],
)
def test_bad_option_says_what_is_valid(tmp_path: Path, arguments: list[str], expected: str) -> None:
    """An invalid value of an option is refused with the valid ones."""
    assert expected in refuse("--address", "127.0.0.1:0", *arguments, folder=tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("host", ["a..b", ".", "a" * 70, "\udcc3"])
def test_name_that_no_host_has(host: str) -> None:
    """A host that Python cannot encode is refused like one that cannot be resolved, on every port of a server."""
    address = f"{host}:0"
    with pytest.raises(StartError, match="Name or service not known"):
        check_port(address, "--health-address")
    with pytest.raises(StartError, match="Name or service not known"):
        MetricsServer(address, CollectorRegistry())
    with pytest.raises(StartError, match="cannot be resolved"):
        check_exposure(address, Security(), None)


def test_port_of_many_digits() -> None:
    """A port that Python does not convert is refused like any other that is too high."""
    with pytest.raises(StartError, match="with a port from 0 to 65535"):
        host_and_port("127.0.0.1:" + "1" * 5000)


@pytest.mark.parametrize("option", ["--database", "--tokens"])
def test_pipe_in_place_of_a_file(tmp_path: Path, option: str) -> None:
    """The server does not wait for a pipe that has the name of its file."""
    os.mkfifo(tmp_path / "pipe")
    value = f"sqlite:///{tmp_path}/pipe" if option == "--database" else str(tmp_path / "pipe")
    options = ["--address", "127.0.0.1:0", *(["--database", "sqlite:///x.db"] if option == "--tokens" else [])]
    assert f"{tmp_path}/pipe is a named pipe" in refuse(*options, option, value, folder=tmp_path)


def test_metrics_without_their_package_say_what_to_install(tmp_path: Path) -> None:
    """With --metrics-address a server without prometheus-client does not start."""
    done = python(without("prometheus_client", "--metrics-address", "127.0.0.1:0"), tmp_path)
    assert done.returncode == 1
    assert "prometheus_client" in done.stderr
    assert "wattwise[server]" in done.stderr


def test_traces_without_their_package_are_a_warning(tmp_path: Path, taken: str) -> None:
    """OTEL_* variables do not prevent the start of a server without the packages for traces."""
    done = python(without("opentelemetry", "--address", taken), tmp_path, OTEL_TRACES_EXPORTER="otlp")
    assert "pip install 'wattwise[otel]'" in done.stderr
    assert f"cannot listen on {taken}" in done.stderr, "it went on to its ports"


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("OTEL_TRACES_EXPORTER", "pigeon", "pip install opentelemetry-exporter-pigeon"),
        ("OTEL_EXPORTER_OTLP_TIMEOUT", "soon", "an OTEL_* variable is invalid"),
    ],
)
def test_invalid_trace_settings_are_refused(tmp_path: Path, name: str, value: str, expected: str) -> None:
    """An exporter that is not installed, or an invalid number, is an error that says what to do."""
    variables = {"OTEL_TRACES_EXPORTER": "otlp", name: value}
    assert expected in refuse("--address", "127.0.0.1:0", folder=tmp_path, **variables)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "variables",
    [
        {},
        {"OTEL_TRACES_EXPORTER": "none", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9"},
        {"OTEL_SDK_DISABLED": "true", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9"},
    ],
)
def test_unused_packages_are_not_imported(tmp_path: Path, variables: dict[str, str]) -> None:
    """Without metrics and traces there are no listeners, and their packages are not imported."""
    code = (
        "import sys\nimport wattwise_server.app\nfrom wattwise_server.config import Config\n"
        "from wattwise_server.observability.telemetry import telemetry\n"
        "with telemetry(Config()) as watch: print(list(watch.listeners))\n"
        "print({'opentelemetry', 'prometheus_client'} & set(sys.modules))"
    )
    assert python(code, tmp_path, **variables).stdout == "[]\nset()\n"
