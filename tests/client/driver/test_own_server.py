"""The server that a driver runs, and its address file."""

from __future__ import annotations

import os
import signal
import socket
import sys
import time

import pytest
from wattwise.driver import own_server
from wattwise.driver.files import try_lock
from wattwise.driver.own_server import OwnServer, OwnServerError

from tests.client.driver.running import Runs, result, servers_of, shell, write_job
from tests.waiting import wait_until


def dead_address() -> str:
    """An address without a listener."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return f"127.0.0.1:{taken.getsockname()[1]}"


def test_address_file_is_removed_with_its_server(runs: Runs) -> None:
    """A finished run leaves no address file, and the next run ignores that of a killed server."""
    assert runs.run(write_job(runs.folder, shell(result()), run={"recurrences": 1})).returncode == 0
    address = runs.path() / "server.address"
    assert not address.exists()
    address.write_text(f"{dead_address()}\n")
    done = runs.run(write_job(runs.folder, shell(result())))
    assert (done.returncode, done.stderr, len(runs.history())) == (0, "", 2)


def test_server_that_does_not_answer(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    """If another driver holds the lock and no server answers, the driver waits, then raises an error."""
    monkeypatch.setattr(own_server, "_START_SECONDS", 0.2)
    lock = try_lock(runs.folder / "server.lock")
    assert lock is not None
    (runs.folder / "server.address").write_text(f"{dead_address()}\n")
    try:
        with pytest.raises(OwnServerError, match=r"server\.lock.* does not answer"), OwnServer(runs.folder):
            pass
    finally:
        os.close(lock)


def test_end_while_the_server_is_restarted(
    runs: Runs, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A driver does not wait for a server that it restarts when it ends."""
    server = OwnServer(runs.folder)
    with server:
        silent = runs.folder / "silent"
        silent.write_text("#!/bin/sh\ntouch started\nexec sleep 100\n")
        silent.chmod(0o755)
        monkeypatch.setattr(sys, "executable", str(silent))
        (process,) = servers_of(runs.folder)
        os.kill(process, signal.SIGKILL)
        wait_until((runs.folder / "started").exists)
        monkeypatch.undo()
        end = time.monotonic()
    assert time.monotonic() - end < 10
    assert "did not start" not in caplog.text
