"""What `wattwise run` does: it opens the folder, a server and the monitor, drives the job, and says what it saved."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from wattwise.commands.main import complain
from wattwise.commands.options import credentials_of
from wattwise.driver.folder import OWN_SERVER, RunFolder
from wattwise.driver.interruption import InterruptedRunError, Interruption
from wattwise.driver.jobfile import JobFile, JobFileError, read
from wattwise.driver.launching import RecurringRun
from wattwise.driver.loop import drive
from wattwise.driver.output import Board, summary
from wattwise.driver.own_server import OwnServer
from wattwise.driver.preflight import dry_run, monitor_fault, open_monitor
from wattwise.errors import (
    CredentialsError,
    InvalidAddressError,
    MonitorError,
    NoBatchSizeLeftError,
    WattwiseError,
)
from wattwise.monitor.named import name_of
from wattwise.monitor.window import WindowMonitor
from wattwise.presentation.sentences import answer
from wattwise.presentation.terminal import print_text
from wattwise.rpc.address import check_address
from wattwise.rpc.client import Client
from wattwise.rpc.credentials import Credentials
from wattwise.spec import JobSpec
from wattwise.streams import MISUSED

_CLAIM_SECONDS = 10.0


def run(args: argparse.Namespace) -> int:
    """Runs the job; returns the exit status.

    Raises:
        WattwiseError: the run cannot continue.
    """
    try:
        return _run(args)
    except JobFileError as error:
        for fault in error.violations:
            complain(f"wattwise run: {args.job_file}: {fault.field}: {fault.description}")
        if not error.violations:
            complain(f"wattwise run: {error}")
        return MISUSED
    except MonitorError as error:
        raise MonitorError(monitor_fault(error)) from error
    except InterruptedRunError as interrupted:
        complain(f"wattwise run: {interrupted}; run the same command to continue")
        return interrupted.status


def _run(args: argparse.Namespace) -> int:
    file = read(args.job_file)
    try:
        credentials = _checked_credentials(args)
    except (InvalidAddressError, CredentialsError) as error:
        complain(f"wattwise run: {error}")
        return MISUSED
    monitor, gpu = open_monitor(file)
    job = replace(file.job, gpu=gpu)
    if args.dry_run:
        dry_run(file, job, args.server, name_of(monitor))
    else:
        _drive(file, job, args.server, credentials, monitor, fresh=args.fresh)
    return 0


def _checked_credentials(args: argparse.Namespace) -> Credentials:
    """Returns the credentials for the server, after its address and their files have been checked."""
    if args.server is None:
        return Credentials()
    address, credentials = check_address(args.server), credentials_of(args)
    credentials.channel_credentials()
    credentials.bearer_token(address)
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
    monitor_name = f"{'estimate, not measured' if monitor.kind == 'estimate' else monitor.kind}: {monitor!r}"
    with _server(server, folder, board) as address, board.shown():
        board.say(f"run {folder.job_id!r} in {folder.path}; server {address}; energy monitor {monitor_name}")
        if before := folder.change_server(server or OWN_SERVER):
            board.say(
                f"WARNING: the trials of this run were reported to {before} so far, and {server or OWN_SERVER} knows "
                "them only if both have one database: otherwise its search starts again, and the run's history has "
                "trials of both. Go back to the former server, or begin a new run with --fresh"
            )
        if spec.has_prices:
            board.say(spec.eta_source())
        # The run's own server has another port each time.
        name = server or f"sqlite:///{folder.path.resolve() / 'wattwise.db'}"
        drive(RecurringRun(file, folder, spec, address, name, credentials, monitor, board, interruption))
        claim = savings_claim(address, credentials, folder.job_id)
    for line in summary(folder.history.read(), claim, monitor_name):
        print_text(line, 2)
    if server is None:
        print_text(f"The run's server ends with its drivers; for commands that call it, run {_serving(folder)}", 2)


def savings_claim(server: str, credentials: Credentials, job_id: str) -> str:
    """Returns what a job saved or lost by the server's figures, or why they are unknown: no fault of the run."""
    try:
        with Client(server, timeout=_CLAIM_SECONDS, retry=False, credentials=credentials) as client:
            known, statistics = client.get_job(job_id), client.get_job_statistics(job_id)
            return answer(known.job, known.details, statistics, client.get_server_info().factors).brief
    except WattwiseError as error:
        return f"unknown: {error}"


@contextmanager
def _server(server: str | None, folder: RunFolder, board: Board) -> Iterator[str]:
    if server is not None:
        yield server
        return
    with OwnServer(folder.path) as address:
        board.say(f"this run's server keeps its state in {folder.path / 'wattwise.db'}")
        try:
            yield address
        except NoBatchSizeLeftError as error:
            # Its message names commands that call the server, which ends now.
            message = f"{error}. For these commands run {_serving(folder)}, or begin again with --fresh"
            raise NoBatchSizeLeftError(message, reason=error.reason, metadata=error.metadata) from error


def _serving(folder: RunFolder) -> str:
    """Returns the command that starts a server on the database of the run's own server."""
    database = shlex.quote(f"sqlite:///{folder.path / 'wattwise.db'}")
    return f"`wattwise serve --database {database}`"
