"""The commands of the guide to several servers on one PostgreSQL, as printed."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import grpc
import pytest
from wattwise import v1

from tests.jobs import Trainer, result
from tests.live_server import LiveServer
from tests.people import PeopleStub
from tests.ports import hold_port, port_of
from tests.postgres import PostgresServer

pytestmark = pytest.mark.thorough

GUIDE = Path(__file__).parents[1] / "docs/operations.md"
TITLE = "## From one SQLite server to three on PostgreSQL\n"


def parts() -> Iterator[tuple[str, str]]:
    """The subsections of the guide: their titles and their commands."""
    text = GUIDE.read_text().partition(TITLE)[2].partition("\n## ")[0]
    for part in text.split("\n### ")[1:]:
        yield part.partition("\n")[0], "".join(re.findall(r"^```sh\n(.*?)^```", part, re.DOTALL | re.MULTILINE))


class Shell:
    """Follows commands in one folder; variables last from one part to the next."""

    def __init__(self, folder: Path, postgres: PostgresServer, names: dict[str, str]) -> None:
        self._folder = folder
        self._names = names
        self._environment = {
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}:{postgres.binaries}:{os.environ['PATH']}",
            "PGHOST": "127.0.0.1",
            "PGPORT": str(postgres.port),
            "PGUSER": "postgres",
            "LC_ALL": "C",
        }
        self._before = ""

    def run(self, commands: str) -> str:
        """Runs commands; returns their output."""
        for name, value in self._names.items():
            commands = commands.replace(name, value)
        everything = f"{self._before}\necho FROM HERE\nset -e\n{commands}"
        done = subprocess.run(
            ["bash"],
            input=everything,
            cwd=self._folder,
            env=self._environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        self._before += "\n".join(re.findall(r"^(?:umask .*|(?:export )?[A-Z_]+=.*)$", commands, re.MULTILINE)) + "\n"
        return done.stdout.partition("FROM HERE\n")[2]

    def start(self, command: str) -> subprocess.Popen[str]:
        """Starts a server in the background; returns once it is ready."""
        for name, value in self._names.items():
            command = command.replace(name, value)
        with (self._folder / "server.log").open("a") as log:
            process = subprocess.Popen(
                ["bash", "-c", f"{self._before}\nexec {command}"],
                cwd=self._folder,
                env=self._environment,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        assert process.stdout is not None
        assert "listens on" in process.stdout.readline(), (self._folder / "server.log").read_text()
        return process


def stop(process: subprocess.Popen[str]) -> None:
    """Stops a server."""
    process.terminate()
    process.communicate(timeout=60)


def train(address: str) -> None:
    """A trainer goes on, and an operator deletes another job."""
    with grpc.insecure_channel(address) as channel:
        trainers, people = v1.BatchSizeOptimizerStub(channel), PeopleStub(channel)
        request = v1.GetNextBatchSizeRequest(job_id="test-moved", launch_id="still-runs")
        trial = trainers.GetNextBatchSize(request).trial
        assert trial.id.trial_number == 2
        decided = trainers.ReportResult(v1.ReportResultRequest(result=result(trial, 5)))
        assert decided.decision.converged
        job = Trainer(trainers)
        job.run(10)
        people.DeleteJob(v1.DeleteJobRequest(job_id=job.job_id))


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """The file of a stopped server, with a job."""
    with LiveServer(tmp_path) as live:
        live.start()
        job = Trainer(live.trainer, job_id="test-moved")
        job.run(10)
        job.next("still-runs")
        assert live.stop() == 0
    return live.database


def test_guide_leads_from_sqlite_to_three_servers(source: Path, tmp_path: Path) -> None:
    """Each command of the guide works, with two roles that need passwords, and a standby that commits wait for."""
    folder = tmp_path / "followed"
    folder.mkdir()
    shutil.copy(source, folder / "wattwise.db")
    ports = [hold_port() for _ in range(3)]
    with ExitStack() as stack:
        for port in ports:
            stack.enter_context(closing(port))
        primary = stack.enter_context(PostgresServer.running())
        ((hba,),) = primary.execute("SHOW hba_file")
        rules = Path(hba).read_text()
        Path(hba).write_text(f"host all wattwise,wattwise_owner all scram-sha-256\n{rules}")
        primary.execute("SELECT pg_reload_conf()")
        standby = stack.enter_context(primary.standby("db2"))
        names = {"db1.example": primary.host, "db2.example": standby.host, "db3.example": standby.host}
        names |= {f"127.0.0.1:{50051 + n}": f"127.0.0.1:{port_of(port)}" for n, port in enumerate(ports)}
        shell = Shell(folder, primary, names)
        followed, servers, sums = [], list[subprocess.Popen[str]](), list[str]()
        for title, commands in parts():
            followed.append(title)
            if title in ("Going back", "Backups of PostgreSQL"):
                while servers:
                    stop(servers.pop())
            begun = [line for line in commands.splitlines() if line.startswith("wattwise serve")]
            before, _, after = commands.partition("\n".join(begun)) if begun else ("", "", commands)
            output = shell.run(before) if before else ""
            for line in begun:
                servers.append(shell.start(line))
                stack.callback(stop, servers[-1])
            output += shell.run(after) if after else ""
            if title == "Moving":
                assert "test-moved" in output
                train(names["127.0.0.1:50052"])
            sums += re.findall(r"^jobs +1  ([0-9a-f]{64})$", output, re.MULTILINE)
        assert len(sums) == 3, "there, back, and restored"
        assert sums[1] == sums[2]
    assert {"The database", "Passwords", "Moving", "Going back", "Backups of PostgreSQL"} <= set(followed)


def test_a_server_may_not_change_the_schema(source: Path, tmp_path: Path) -> None:
    """The role of the servers cannot create tables: without `wattwise migrate` its servers say what to run."""
    with PostgresServer.running() as primary:
        folder = tmp_path / "followed"
        folder.mkdir()
        shell = Shell(folder, primary, {})
        database, commands = next(parts())
        assert database == "The database"
        shell.run(commands.partition("psql -d postgres -c")[0])
        command = [sys.executable, "-m", "wattwise_server", "--address", "127.0.0.1:0", "--database"]
        url = f"postgresql://wattwise@{primary.host}/wattwise"
        done = subprocess.run([*command, url], capture_output=True, text=True, check=False, timeout=60)
        assert done.returncode == 1
        assert "wattwise migrate" in done.stderr
    assert source.exists()
