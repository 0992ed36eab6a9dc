"""The `run` subcommand of `wattwise`: a job that recurs by itself."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from wattwise.commands.main import MISUSED, complain
from wattwise.commands.options import add_credential_options, credentials_of
from wattwise.driver.board import Board
from wattwise.driver.driver import drive
from wattwise.driver.environment import Assignment, told
from wattwise.driver.folder import RunFolder, folder_name
from wattwise.driver.interruption import InterruptedRunError, Interruption
from wattwise.driver.jobfile import JobFile, JobFileError, read
from wattwise.driver.launching import Run
from wattwise.driver.monitor_advice import for_job_file
from wattwise.driver.own_server import OwnServer, OwnServerError
from wattwise.driver.preflight import opened, try_to_register
from wattwise.driver.summary import summary
from wattwise.errors import CredentialsError, InvalidAddressError, MonitorError
from wattwise.monitor.named import name_of
from wattwise.monitor.window import WindowMonitor
from wattwise.rpc.address import check_address
from wattwise.rpc.credentials import Credentials
from wattwise.spec import JobSpec

_TARGET, _EPOCHS = 0.5, 100
"""What the server takes for a target_metric and max_epochs that are not given."""

_EPILOG = """exit status: 0 every recurrence has its model; 1 the run cannot go on, and it is said why; 2 the arguments
or the job file are wrong, or name what is not there: nothing was launched; 129, 130, 143 SIGHUP, Ctrl-C or SIGTERM
stopped it, and started again it goes on."""


class RunCommand:
    """The `run` subcommand of `wattwise`."""

    help = "launch a training command again and again, with the batch sizes that the server chooses"

    def add_arguments(self, parser: argparse.ArgumentParser, /) -> None:
        """Declares the job file and the options."""
        parser.epilog = _EPILOG
        parser.add_argument("job_file", type=Path, metavar="JOB.toml", help="the job, its command, how often it recurs")
        parser.add_argument(
            "--server",
            default=os.environ.get("WATTWISE_SERVER") or None,
            metavar="ADDRESS",
            help="the server's host:port ($WATTWISE_SERVER; default: one of its own, in the run's folder)",
        )
        parser.add_argument("--fresh", action="store_true", help="begin anew, beside the runs that there are")
        parser.add_argument(
            "--dry-run",
            action="store_true",
            help="check it all, print the first try of the first recurrence for each batch size, and stop; later tries "
            "have other seeds",
        )
        add_credential_options(parser)

    def run(self, args: argparse.Namespace, /) -> int:
        """Runs the job; returns the exit status.

        Raises:
            WattwiseError: what keeps the run from going on.
        """
        try:
            return _run(args)
        except JobFileError as error:
            return _faulty(args.job_file, error)
        except MonitorError as error:
            raise MonitorError(for_job_file(str(error))) from error
        except InterruptedRunError as stop:
            complain(f"wattwise run: {stop}; the same command goes on from here")
            return stop.status


COMMAND = RunCommand()


def _faulty(path: Path, error: JobFileError) -> int:
    """Says every fault in a line of its own."""
    for fault in error.violations:
        complain(f"wattwise run: {path}: {fault.field}: {fault.description}")
    if not error.violations:
        complain(f"wattwise run: {error}")
    return MISUSED


def _run(args: argparse.Namespace) -> int:
    file = read(args.job_file)
    try:
        credentials = _checked_credentials(args)
    except (InvalidAddressError, CredentialsError) as error:
        complain(f"wattwise run: {error}")
        return MISUSED
    monitor, gpu = opened(file)
    spec = replace(file.job, gpu=gpu)
    if args.dry_run:
        _rehearse(file, spec, args.server, name_of(monitor))
    else:
        _drive(file, spec, args.server, credentials, monitor, fresh=args.fresh)
    return 0


def _checked_credentials(args: argparse.Namespace) -> Credentials:
    """What the server is shown, after a look at its address and at the files that are named."""
    if args.server is None:
        return Credentials()
    address, credentials = check_address(args.server), credentials_of(args)
    credentials.channel_credentials()
    credentials.authorization(address)
    return credentials


def _drive(
    file: JobFile,
    job: JobSpec,
    server: str | None,
    credentials: Credentials,
    monitor: WindowMonitor,
    *,
    fresh: bool,
) -> None:
    interruption = Interruption()
    interruption.install()
    folder = RunFolder.open(file.run.log_dir, file.job_id, fresh=fresh)
    spec = replace(job, job_id=folder.job_id)
    board = Board(folder.job_id, file.run.recurrences)
    described = _monitor_in_words(monitor)
    with _server(server, folder, board) as address, board.shown():
        board.say(f"run {folder.job_id!r} in {folder.path}; the server is at {address}; energy by {described}")
        drive(Run(file, folder, spec, address, credentials, monitor, board, interruption))
    for line in summary(folder.history.read(), file.job.default_batch_size, described):
        board.say(line)


@contextmanager
def _server(server: str | None, folder: RunFolder, board: Board) -> Iterator[str]:
    if server is not None:
        yield server
        return
    with OwnServer(folder.path) as address:
        board.say(f"a server of its own keeps what it learns in {folder.path / 'wattwise.db'}")
        yield address


def _monitor_in_words(monitor: WindowMonitor) -> str:
    if monitor.kind == "estimate":
        return f"an estimate, not measured: {monitor!r}"
    return f"the monitor {monitor.kind}: {monitor!r}"


def _rehearse(file: JobFile, job: JobSpec, server: str | None, monitor: str) -> None:
    """Has a server look at the job, and shows what would be launched."""
    unasked = ""
    try:
        try_to_register(job)
    except OwnServerError as error:
        unasked = f"; what a server would refuse was not looked at: {error}"
    _show_commands(file, job, server, monitor)
    where = f"# in {file.train.workdir}; N, ID{'' if server else ' and PORT'} are known once it runs"
    print(f"{where}, and each later try has the next seed{unasked}", file=sys.stderr)  # noqa: T201


def _show_commands(file: JobFile, job: JobSpec, server: str | None, monitor: str) -> None:
    """Prints the command for each batch size, the default first, in a form that a shell takes."""
    run = file.run
    folder = run.log_dir / folder_name(file.job_id)
    sizes = sorted(job.batch_sizes, key=lambda size: (size != job.default_batch_size, size))
    for size in sizes:
        assignment = Assignment(
            spec=job,
            target_metric=_TARGET if job.target_metric is None else job.target_metric,
            max_epochs=_EPOCHS if job.max_epochs is None else job.max_epochs,
            server=server or "127.0.0.1:PORT",
            monitor=monitor,
            trial_number="N",
            request_id="ID",
            reason="",
            batch_size=size,
            seed=run.seed,
            recurrence=1,
            try_number=1,
            log_dir=folder / "trial-N",
        )
        shown = told(file, assignment)
        print(f"# batch size {size}")  # noqa: T201 - the command's answer
        for name, value in sorted(shown.variables.items()):
            print(f"{name}={shlex.quote(value)} \\")  # noqa: T201 - the command's answer
        print(shlex.join(shown.words))  # noqa: T201 - the command's answer
