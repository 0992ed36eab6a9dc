"""`wattwise serve`: options, failed starts, shutdown."""

from __future__ import annotations

import os
import re
import socket
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase
from wattwise_server.errors import StartError
from wattwise_server.store.sqlite.migrate import migrate, migrations

from tests.forking import run
from tests.jobs import Trainer
from tests.live_server import LiveServer
from tests.waiting import wait_until

OURS = [f"wattwise.v1.{name}" for name in ("BatchSizeOptimizer", "JobReader", "JobControl", "ServerInfo")]


def refuse(*arguments: str, folder: Path, **variables: str) -> str:
    """Starts a server whose start must fail; returns its error."""
    done = run("serve", *arguments, folder=folder, environment={**os.environ, **variables})
    assert done.returncode != 0
    assert "Traceback" not in done.stderr
    return done.stderr


def test_health_and_reflection_are_answered(server: LiveServer) -> None:
    """grpc.health.v1 says SERVING for the whole and each service, and reflection lists every service."""
    health: Any = health_pb2_grpc.HealthStub(server.channel)
    for name in ("", *OURS):
        answer = health.Check(health_pb2.HealthCheckRequest(service=name))
        assert answer.status == health_pb2.HealthCheckResponse.SERVING
    services = ProtoReflectionDescriptorDatabase(server.channel).get_services()
    assert {*OURS, "grpc.health.v1.Health"} <= set(services)


def test_taken_port_is_refused(server: LiveServer, tmp_path: Path) -> None:
    """A second server never shares the first one's port; it says what to look at."""
    error = refuse("--address", server.address, "--database", f"sqlite:///{tmp_path}/other.db", folder=tmp_path)
    assert f"cannot listen on {server.address}" in error
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        held.listen()
        address = f"127.0.0.1:{held.getsockname()[1]}"
        assert f"cannot listen on {address}" in refuse("--address", address, folder=tmp_path)


def test_taken_database_is_refused(server: LiveServer, tmp_path: Path) -> None:
    """A second server on the same file is refused, through a link too, and the first continues."""
    link = tmp_path / "link.db"
    link.symlink_to(server.database)
    for path in (server.database, link):
        error = refuse("--address", "127.0.0.1:0", "--database", f"sqlite:///{path}", folder=tmp_path)
        assert "another server uses" in error
    assert Trainer(server.trainer).next().id.trial_number == 1


def test_file_of_a_killed_server_is_free(server: LiveServer) -> None:
    """Kill -9 leaves no lock behind."""
    server.kill()
    server.start()
    assert Trainer(server.trainer).next().id.trial_number == 1


_OPENING = ("serve", "migrate", "backup", "restore", "copy", "copy to")


@pytest.mark.parametrize("command", _OPENING)
def test_files_of_later_versions_are_refused_untouched(tmp_path: Path, command: str) -> None:
    """A file of a later schema version is not changed by a single byte."""
    path = tmp_path / "other version.db"
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        migrate(connection, str(path))
        connection.execute("PRAGMA user_version = 4711")
    before = path.read_bytes()
    error = failing(*_words(command, path, tmp_path))
    assert f"{path} has schema version 4711, " in error
    assert "run a newer Wattwise" in error
    assert path.read_bytes() == before


def _words(command: str, path: Path, folder: Path) -> tuple[str, ...]:
    """The command that opens a file, in a folder for the others that it needs."""
    other, url = folder / "other.db", f"sqlite:///{path}"
    return {
        "serve": ("serve", "--address", "127.0.0.1:0", "--database", url),
        "migrate": ("migrate", "--database", url),
        "backup": ("backup", str(other), "--database", url),
        "restore": ("restore", str(path), "--database", f"sqlite:///{other}"),
        "copy": ("copy", url, f"sqlite:///{other}"),
        "copy to": ("copy", "sqlite:///" + _new_database(folder), url),
    }[command]


@pytest.mark.parametrize(
    ("command", "content"),
    [
        *((command, content) for command in _OPENING for content in ("tables", "version", "text", "bytes")),
        # An empty file becomes a database of the others.
        *((command, "empty") for command in ("backup", "restore", "copy")),
    ],
)
def test_foreign_files_are_refused_untouched(tmp_path: Path, command: str, content: str) -> None:
    """What Wattwise has not written is called so by every command that opens a database, and is left as it is."""
    path = tmp_path / "foreign"
    if content in ("tables", "version"):
        with closing(sqlite3.connect(path, isolation_level=None)) as connection:
            connection.execute("CREATE TABLE customers (name)")
            connection.execute(f"PRAGMA user_version = {4711 * (content == 'version')}")
    else:
        path.write_bytes({"text": b"Dear friend, ", "bytes": b"\x00\xff", "empty": b""}[content] * 1000)
    before = path.read_bytes()
    or_damaged = ", or its header is damaged: name another file, or restore a backup"
    suffix = or_damaged if content in ("text", "bytes") else ": name another file"
    assert f"{path} is not a Wattwise database{suffix}\n" in failing(*_words(command, path, tmp_path))
    assert path.read_bytes() == before


def _new_database(folder: Path) -> str:
    """The name of an empty Wattwise database."""
    path = folder / "new.db"
    with closing(sqlite3.connect(path)) as connection:
        migrate(connection, str(path))
    return str(path)


def failing(*words: str) -> str:
    """What a `wattwise` command that fails writes to stderr."""
    done = run(*words)
    assert done.returncode == 1
    return done.stderr


@pytest.mark.parametrize("command", ["serve", "migrate", "backup", "restore", "copy"])
def test_folder_is_no_database(tmp_path: Path, command: str) -> None:
    """A folder is called a folder."""
    folder, new = tmp_path / "folder", tmp_path / "new.db"
    folder.mkdir()
    words = {
        "serve": ("--address", "127.0.0.1:0", "--database", f"sqlite:///{folder}"),
        "migrate": ("--database", f"sqlite:///{folder}"),
        "backup": (str(new), "--database", f"sqlite:///{folder}"),
        "restore": (str(folder), "--database", f"sqlite:///{new}"),
        "copy": (f"sqlite:///{folder}", f"sqlite:///{new}"),
    }[command]
    assert f"{folder} is a folder" in failing(command, *words)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--address", "nowhere"], "write host:port"),
        (["--address", "127.0.0.1:notaport"], "write host:port"),
        (["--database", "postgres://x"], "use postgresql://USER@HOST/DATABASE"),
        (["--database", "mysql://x"], "sqlite:///wattwise.db"),
        (["--database", "sqlite:///:memory:"], "sqlite:///wattwise.db"),
        (["--database", "sqlite:////no/such/folder/x.db"], "there is no folder /no/such/folder"),
        (["--grace-seconds", "-1"], "use 0 to 3600 seconds"),
        (["--grace-seconds", "soon"], "use 0 to 3600 seconds"),
        (["--max-connection-age-seconds", "-1"], "use 0 to 604800 seconds; 0 never closes them"),
        (["--max-connection-age-seconds", "nan"], "use 0 to 604800 seconds"),
        (["--log-level", "loud"], "debug, info, warning, error"),
        (["--adress", "127.0.0.1:0"], "--adress"),
    ],
)
def test_bad_option_says_what_is_valid(tmp_path: Path, arguments: list[str], expected: str) -> None:
    """A wrong option, address or database is refused with what would be right, and leaves nothing behind."""
    assert expected in refuse("--address", "127.0.0.1:0", *arguments, folder=tmp_path)
    assert not list(tmp_path.iterdir())


def test_options_are_variables_too(tmp_path: Path) -> None:
    """WATTWISE_ADDRESS and its like stand in for options, are checked like them, and options go first."""
    assert "write host:port" in refuse(folder=tmp_path, WATTWISE_ADDRESS="nowhere")
    assert "debug, info" in refuse(folder=tmp_path, WATTWISE_LOG_LEVEL="loud")
    error = refuse("--address", "elsewhere", folder=tmp_path, WATTWISE_ADDRESS="nowhere")
    assert "elsewhere" in error


def test_it_ends_with_0_and_leaves_a_whole_file(server: LiveServer) -> None:
    """After SIGTERM the exit status is 0, no side files are left, and SQLite finds nothing amiss."""
    job = Trainer(server.trainer)
    job.run(100.0)
    assert server.stop() == 0
    assert not server.database.with_name("wattwise.db-wal").exists()
    with closing(sqlite3.connect(server.database)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        assert connection.execute("PRAGMA foreign_key_check").fetchall() == []
        assert connection.execute("PRAGMA user_version").fetchone() == (max(migrations()),)
        (created,) = connection.execute("SELECT create_time FROM jobs").fetchone()
    assert re.fullmatch(r"1[78]\d{14}", str(created))
    assert "Traceback" not in server.log.read_text()


def test_it_ends_with_0_from_the_first_moment_on(server: LiveServer) -> None:
    """A SIGTERM that comes as soon as the address is printed ends the server as any other does."""
    for _ in range(5):
        assert server.stop() == 0
        server.start()


def test_hanging_up_ends_no_server(server: LiveServer) -> None:
    """Without certificates and tokens a SIGHUP is logged and changes nothing."""
    job = Trainer(server.trainer)
    server.hang_up()
    wait_until(lambda: "SIGHUP ignored" in server.log.read_text())
    assert job.next().id.trial_number == 1
    assert server.stop() == 0


def test_migrations_run_forward_in_one_transaction(tmp_path: Path) -> None:
    """An older file gets every missing migration; one that fails leaves the file unchanged."""
    path = str(tmp_path / "old.db")
    steps = {1: "CREATE TABLE a (x);", 2: "ALTER TABLE a ADD COLUMN y;"}
    broken = {**steps, 3: "CREATE TABLE b (x); CREATE TABLE b (x);"}
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        migrate(connection, path, {1: steps[1]})
        with pytest.raises(sqlite3.Error):
            migrate(connection, path, broken)
        tables = connection.execute("SELECT sql FROM sqlite_master").fetchall()
        assert tables == [("CREATE TABLE a (x)",)]
        assert connection.execute("PRAGMA user_version").fetchone() == (1,)
        migrate(connection, path, steps)
        assert [row[1] for row in connection.execute("PRAGMA table_info(a)")] == ["x", "y"]
        with pytest.raises(StartError, match="schema version 2"):
            migrate(connection, path, {1: steps[1]})


def test_call_after_the_end_is_unavailable(server: LiveServer) -> None:
    """A server that has gone answers nothing, as gRPC says it: UNAVAILABLE."""
    job = Trainer(server.trainer)
    server.stop()
    with pytest.raises(grpc.RpcError) as caught:
        job.next()
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
