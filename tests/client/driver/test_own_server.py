"""The server of a run's own, and the address that it leaves."""

from __future__ import annotations

import os
import socket

import pytest
from wattwise.driver import own_server
from wattwise.driver.durable import try_lock
from wattwise.driver.own_server import OwnServer, OwnServerError

from tests.client.driver.running import Runs, result, shell, write_job


def dead_address() -> str:
    """An address at which nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return f"127.0.0.1:{taken.getsockname()[1]}"


def test_address_goes_with_its_server(runs: Runs) -> None:
    """A run that is over leaves no address of a server that is gone; that of a killed one does not mislead the next."""
    assert runs.run(write_job(runs.folder, shell(result()), run={"recurrences": 1})).returncode == 0
    address = runs.path() / "server.address"
    assert not address.exists()
    address.write_text(f"{dead_address()}\n")
    done = runs.run(write_job(runs.folder, shell(result())))
    assert (done.returncode, done.stderr, len(runs.history())) == (0, "", 2)


def test_dead_address_is_not_taken_for_a_server(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    """While another driver is to run the server and nothing answers there, that is waited for and then said."""
    monkeypatch.setattr(own_server, "_START_SECONDS", 0.2)
    lock = try_lock(runs.folder / "server.lock")
    assert lock is not None
    (runs.folder / "server.address").write_text(f"{dead_address()}\n")
    said = r"another driver is to run the server of this folder \(.*server\.lock is taken\), but none answers"
    try:
        with pytest.raises(OwnServerError, match=said), OwnServer(runs.folder):
            pass
    finally:
        os.close(lock)
