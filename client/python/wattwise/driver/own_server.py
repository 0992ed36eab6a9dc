"""A server for one run: the drivers of a folder share it, and it runs as long as one of them does."""

from __future__ import annotations

import os
import re
import select
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

from wattwise.driver.files import WriteError, try_lock, writing
from wattwise.driver.process import Process
from wattwise.errors import WattwiseError, log
from wattwise.files import SMALL, FileError, open_file, read_end, read_text, replacing

_START_SECONDS = 60.0
_CHECK_SECONDS = 0.5
_GRACE_SECONDS = 20.0
_OWN_ADDRESS = re.compile(r"127\.0\.0\.1:[0-9]{1,5}")
_LISTENS = re.compile(rb"wattwise listens on (\S+)\n")


class OwnServerError(WattwiseError):
    """The run's server could not be started."""


class OwnServer:
    """Keeps a server running on the run's database, within its block.

    The driver that holds the lock runs it, always on the same address. When the server or its driver dies, this or
    another driver restarts it there. To a running command this is an outage like any other.

    Args:
        folder: the run's folder, with wattwise.db, server.log and server.address.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._address_file = folder / "server.address"
        self._address = ""
        self._lock: int | None = None
        self._process: Process | None = None
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._keep_running, name="wattwise-own-server", daemon=True)

    def __enter__(self) -> str:
        """Starts the server, or finds the one that another driver runs.

        Returns:
            Its address.

        Raises:
            OwnServerError: if it does not start; the message says why.
        """
        deadline = time.monotonic() + _START_SECONDS
        while not (self._ensure_running() or self._find_running()):
            if time.monotonic() > deadline:
                raise OwnServerError(
                    f"another driver holds {self._folder / 'server.lock'}, but its server does not answer; see "
                    f"{self._folder / 'server.log'}. Wait until that driver ends, or stop it"
                )
            time.sleep(0.1)
        self._thread.start()
        return self._address

    def __exit__(self, *_error: object) -> None:
        self._over.set()
        self._thread.join()
        if self._process is not None:
            self._process.end()
            with suppress(OSError):
                self._address_file.unlink(missing_ok=True)
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _ensure_running(self) -> bool:
        """Starts the server unless this or another driver runs it; returns whether this driver runs it."""
        if self._process is not None and self._process.status() is None:
            return True
        if self._process is not None:
            self._process.close()
            self._process = None
        if self._lock is None:
            self._lock = try_lock(self._folder / "server.lock")
        if self._lock is None:
            return False
        self._start(self._lock)
        return True

    def _find_running(self) -> bool:
        """Returns whether another driver's server answers; a killed one may have left its address."""
        self._address = self.written_address()
        return _answers(self._address)

    def written_address(self) -> str:
        """Returns the address that the last server had; empty if it is not known, or not one of this machine."""
        with suppress(FileNotFoundError, FileError):
            address = read_text(self._address_file, SMALL).strip()
            return address if _OWN_ADDRESS.fullmatch(address) else ""
        return ""

    def _start(self, lock: int) -> None:
        # Commands that run already know the first address.
        known = self._address or self.written_address()
        with writing(self._address_file):
            self._address_file.unlink(missing_ok=True)
        try:
            address = self._serve(known or "127.0.0.1:0", lock)
        except OwnServerError:
            if not known or self._over.is_set():
                raise
            # Another program has taken the port.
            address = self._serve("127.0.0.1:0", lock)
        with writing(self._address_file), replacing(self._address_file) as file:
            file.write(f"{address}\n".encode())
        self._address = address

    def _serve(self, address: str, lock: int) -> str:
        """Starts the server process; returns the address that it prints."""
        command = [sys.executable, "-m", "wattwise_server", "--address", address]
        command += ["--database", f"sqlite:///{self._folder / 'wattwise.db'}"]
        # WATTWISE_* variables of the environment configure other servers.
        environment = {name: value for name, value in os.environ.items() if not name.startswith("WATTWISE_")}
        log_file = self._folder / "server.log"
        with writing(log_file):
            errors = open_file(log_file, "ab")
        with errors:
            offset = errors.tell()
            self._process = Process(
                command,
                environment=environment,
                folder=self._folder,
                output=subprocess.PIPE,
                errors=errors,
                grace_seconds=_GRACE_SECONDS,
                lock=lock,
            )
        deadline = time.monotonic() + _START_SECONDS
        ready = False
        while not (ready or self._over.is_set() or time.monotonic() > deadline):
            ready = bool(select.select([self._process.output], [], [], _CHECK_SECONDS)[0])
        listens = _LISTENS.search(self._process.output.readline() if ready else b"")
        if listens is None:
            self._process.end()
            self._process = None
            raise OwnServerError(f"the server of this run did not start: {_failure(log_file, offset)}")
        return listens[1].decode()

    def _keep_running(self) -> None:
        while not self._over.wait(_CHECK_SECONDS):
            try:
                self._ensure_running()
            except (OwnServerError, WriteError, OSError) as error:  # noqa: PERF203 - twice a second
                if not self._over.is_set():
                    log.warning("%s; retrying", error)


def _answers(address: str) -> bool:
    """Returns whether a server listens at the address."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=_CHECK_SECONDS).close()
    except (OSError, ValueError, OverflowError):
        return False
    return True


def _failure(log_file: Path, offset: int) -> str:
    """Returns why the server did not start, from its log."""
    lines = read_end(log_file, SMALL, offset).decode(errors="replace").strip().splitlines()
    if any("No module named" in line for line in lines):
        return 'packages are missing: pip install "wattwise[run]", or name a server with --server'
    return f"{lines[-1] if lines else 'no log was written'} (see {log_file})"
