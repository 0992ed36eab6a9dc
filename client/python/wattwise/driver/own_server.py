"""A server of the run's own, for as long as a driver needs it: the drivers of one folder share one."""

from __future__ import annotations

import os
import re
import select
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

from wattwise.driver.durable import try_lock
from wattwise.driver.process import Process
from wattwise.errors import WattwiseError, log

_START_SECONDS = 60.0
_LOOK_SECONDS = 0.5
_GRACE_SECONDS = 20.0
_LISTENS = re.compile(rb"wattwise listens on (\S+)\n")


class OwnServerError(WattwiseError):
    """The server of the run could not be started."""


class OwnServer:
    """Sees to it that a server runs on the run's database.

    Whoever has the lock runs it, on the address that the first one got. When it dies, or the driver that ran it does,
    the same or another driver starts it again there; trainings bridge that as they bridge any server that is away.

    Args:
        folder: the run's folder: wattwise.db, server.log and server.address are in it.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file = folder / "server.address"
        self._address = ""
        self._lock: int | None = None
        self._process: Process | None = None
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="wattwise-own-server", daemon=True)

    def __enter__(self) -> str:
        """Starts it, or finds the one that another driver runs.

        Returns:
            Its address.

        Raises:
            OwnServerError: if it does not start; says why.
        """
        deadline = time.monotonic() + _START_SECONDS
        while not (self._runs() or self._finds_another()):
            if time.monotonic() > deadline:
                raise OwnServerError(
                    f"another driver is to run the server of this folder ({self._folder / 'server.lock'} is taken), "
                    f"but none answers; {self._folder / 'server.log'} may say why. Wait until it ends, or end it"
                )
            time.sleep(0.1)
        self._thread.start()
        return self._address

    def __exit__(self, *_error: object) -> None:
        self._over.set()
        self._thread.join()
        if self._process is not None:
            self._process.end()
            self._file.unlink(missing_ok=True)
        self._let_go()

    def _runs(self) -> bool:
        """Whether this driver runs a server now, which it starts if no driver does."""
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

    def _finds_another(self) -> bool:
        """Whether the server of another driver answers: an address may be left of one that was killed."""
        self._address = self._written()
        return _answers(self._address)

    def _written(self) -> str:
        try:
            return self._file.read_text().strip()
        except FileNotFoundError:
            return ""

    def _start(self, lock: int) -> None:
        # The commands that run know the address that this driver began with.
        known = self._address or self._written()
        self._file.unlink(missing_ok=True)
        try:
            address = self._serve(known or "127.0.0.1:0", lock)
        except OwnServerError:
            if not known:
                raise
            # Somebody has taken the port meanwhile.
            address = self._serve("127.0.0.1:0", lock)
        beside = self._file.with_name("server.address.new")
        beside.write_text(f"{address}\n")
        beside.replace(self._file)
        self._address = address

    def _serve(self, address: str, lock: int) -> str:
        """Starts the server; returns the address that it printed."""
        command = [sys.executable, "-m", "wattwise_server", "--address", address]
        command += ["--database", f"sqlite:///{self._folder / 'wattwise.db'}"]
        # What the environment says of servers and credentials is meant for others.
        environment = {name: value for name, value in os.environ.items() if not name.startswith("WATTWISE_")}
        log_file = self._folder / "server.log"
        with log_file.open("ab") as errors:
            begin = errors.tell()
            self._process = Process(
                command,
                environment=environment,
                folder=self._folder,
                output=subprocess.PIPE,
                errors=errors,
                grace_seconds=_GRACE_SECONDS,
                lock=lock,
            )
        found = _LISTENS.search(_first_line(self._process))
        if found is None:
            self._process.end()
            self._process = None
            raise OwnServerError(f"the server of this run did not start: {_last_words(log_file, begin)}")
        return found[1].decode()

    def _keep(self) -> None:
        while not self._over.wait(_LOOK_SECONDS):
            self._look_after()

    def _look_after(self) -> None:
        try:
            self._runs()
        except (OwnServerError, OSError) as error:
            log.warning("%s; it is tried again", error)

    def _let_go(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def _answers(address: str) -> bool:
    """Whether anything listens there."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=_LOOK_SECONDS).close()
    except (OSError, ValueError, OverflowError):
        return False
    return True


def _first_line(process: Process) -> bytes:
    ready, _, _ = select.select([process.output], [], [], _START_SECONDS)
    return process.output.readline() if ready else b""


def _last_words(log_file: Path, begin: int) -> str:
    with log_file.open("rb") as file:
        file.seek(begin)
        said = file.read().decode(errors="replace").strip()
    if "No module named" in said:
        return 'its packages are missing: pip install "wattwise[run]", or name a server with --server'
    return f"{said.splitlines()[-1] if said else 'it said nothing'} (all of it is in {log_file})"
