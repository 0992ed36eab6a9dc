"""The `run` subcommand of `wattwise`: its arguments."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from wattwise.commands.options import SERVER, add_credential_options, server_address

_EPILOG = """exit status: 0 every recurrence has reached the target; 1 the run cannot continue; 2 the arguments or the
job file are invalid, or name something that is missing, and nothing was launched; 129, 130 or 143 the run was stopped
by SIGHUP, Ctrl-C or SIGTERM, and continues when it is started again."""


class RunCommand:
    """The `run` subcommand of `wattwise`."""

    def add_arguments(self, parser: argparse.ArgumentParser, /) -> None:
        """Declares the job file and the options."""
        parser.epilog = _EPILOG
        parser.add_argument(
            "job_file", type=Path, metavar="JOB.toml", help="defines the job, its command and how often it recurs"
        )
        parser.add_argument(
            "--server",
            type=server_address,
            default=os.environ.get(SERVER) or None,
            metavar="ADDRESS",
            help="the server's host:port, or several with commas ($WATTWISE_SERVER; default: start one in the run's "
            "folder)",
        )
        parser.add_argument("--fresh", action="store_true", help="start a new run beside the existing ones")
        parser.add_argument(
            "--dry-run",
            action="store_true",
            help="check everything, print the first try of the first recurrence for each batch size, and exit; later "
            "tries have other seeds",
        )
        add_credential_options(parser)

    def run(self, args: argparse.Namespace, /) -> int:
        """Runs the job; returns the exit status.

        Raises:
            WattwiseError: the run cannot continue.
        """
        from wattwise.driver.command import run  # noqa: PLC0415 - slow, and unused by --help

        return run(args)


COMMAND = RunCommand()
