"""PostgreSQL for tests: what it withstands, and that nothing is left of it."""

from __future__ import annotations

import asyncio
import errno
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import asyncpg
import pytest

from tests.postgres import PostgresServer
from tests.waiting import wait_until


@pytest.fixture(scope="module")
def own() -> Iterator[PostgresServer]:
    """A server that tests may stop."""
    with PostgresServer.running() as server:
        yield server


def test_committed_rows_survive_every_end(own: PostgresServer) -> None:
    """A database keeps its rows through a fast stop, an immediate one and a kill, on the same port."""
    url = own.create_database()
    own.execute("CREATE TABLE t (n int)", url)
    for number, end in enumerate((own.stop, lambda: own.stop(immediately=True), own.kill), 1):
        own.execute("INSERT INTO t VALUES (1)", url)
        end()
        with pytest.raises(AssertionError, match="refused"):
            own.execute("SELECT 1")
        own.start()
        assert own.execute("SELECT count(*) FROM t", url) == [[str(number)]]
    own.drop_database(url)


def test_suspended_server_answers_once_it_is_resumed(own: PostgresServer) -> None:
    """A suspended server keeps its connections and answers nothing."""
    own.suspend()
    with pytest.raises(TimeoutError):
        asyncio.run(asyncpg.connect(own.url(), timeout=0.1))
    own.resume()
    assert own.execute("SELECT 1") == [["1"]]


def test_files_that_may_not_grow(own: PostgresServer) -> None:
    """Above the limit a table cannot be written, as on a full disk, until the limit is lifted."""
    url = own.create_database()
    own.execute("CREATE TABLE t AS SELECT repeat('x', 1000) FROM generate_series(1, 1000)", url)
    # The log of transactions has files of 16 MB.
    own.limit_file_size(2**24)
    for _ in range(2):
        with pytest.raises(AssertionError, match=os.strerror(errno.EFBIG)):
            own.execute("INSERT INTO t SELECT repeat('x', 1000) FROM generate_series(1, 20000)", url)
    own.limit_file_size(None)
    assert own.execute("SELECT count(*) FROM t", url) == [["1000"]]
    own.drop_database(url)


def test_standby_takes_over() -> None:
    """A synchronous standby has every commit of a primary that was killed, and takes writes once it is promoted."""
    with PostgresServer.running(major=18) as primary, primary.standby() as standby:
        version = standby.execute("SHOW server_version_num")[0][0]
        assert version.startswith("18") or "WATTWISE_TEST_POSTGRES" in os.environ
        primary.make_synchronous()
        primary.execute("CREATE TABLE t (n int)")
        primary.execute("INSERT INTO t VALUES (1)")
        primary.kill()
        assert standby.execute("SELECT pg_is_in_recovery()") == [["t"]]
        standby.promote()
        standby.execute("INSERT INTO t VALUES (2)")
        assert standby.execute("SELECT sum(n) FROM t") == [["3"]]


def test_database_of_a_test_is_empty_and_its_own(postgres_server: PostgresServer, postgres_url: str) -> None:
    """The fixture's database has no tables and is not the one that others connect to."""
    tables = "SELECT count(*) FROM pg_tables WHERE schemaname = 'public'"
    assert postgres_server.execute(tables, postgres_url) == [["0"]]
    postgres_server.execute("CREATE TABLE t (n int)", postgres_url)
    assert postgres_server.execute(tables) == [["0"]]
    name = postgres_url.rpartition("/")[2]
    with ThreadPoolExecutor(1) as pool:
        sleeping = pool.submit(postgres_server.execute, "SELECT pg_sleep(100)", name)
        wait_until(lambda: postgres_server.terminate_backends(f"datname = '{name}'") == 1)
        with pytest.raises(AssertionError, match="terminating connection"):
            sleeping.result()


_DIES = """
import sys
from tests.postgres import PostgresServer
with PostgresServer.running() as server:
    server.suspend()
    print(server._folder, server._process.pid, flush=True)
    sys.stdin.read()
"""


def test_nothing_outlives_a_killed_test() -> None:
    """A suspended server and its folder go when the process that made it is killed."""
    command = [sys.executable, "-c", _DIES]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        folder, pid = process.stdout.readline().split()
        process.kill()
    wait_until(lambda: not Path(folder).exists())
    wait_until(lambda: not _working_in(folder))
    assert not Path(f"/proc/{pid}/cwd").is_dir()


def _working_in(folder: str) -> list[str]:
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if str((process / "cwd").readlink()).startswith(folder):
                found.append(process.name)
    return found
