"""`wattwise backup` and `wattwise restore`: the database to a file, under a running server, and back, without one."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from wattwise_server.commands.options import URL, add_option
from wattwise_server.config import Config
from wattwise_server.errors import StartError
from wattwise_server.store.backup import backup, restore
from wattwise_server.store.open import database_path


class BackupCommand:
    """The `backup` subcommand of `wattwise`."""

    help = "copy the server's database to a file, while it serves"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declares the file and where the database is."""
        parser.add_argument("file", metavar="FILE", type=Path, help="the file to make")
        _common_options(parser)

    def run(self, args: argparse.Namespace) -> int:
        """Makes the copy; 0 when it is sound and durable, else 1."""
        try:
            backup(database_path(args.database), args.file, overwrite=args.force)
        except StartError as error:
            return _fail("backup", error)
        print(f"{args.file} is a sound copy of {args.database}")  # noqa: T201 - the command's answer
        return 0


class RestoreCommand:
    """The `restore` subcommand of `wattwise`."""

    help = "put a backup in the place of the server's database, while no server runs"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declares the backup and where the database is."""
        parser.add_argument("file", metavar="FILE", type=Path, help="the backup")
        _common_options(parser)

    def run(self, args: argparse.Namespace) -> int:
        """Restores; 0 when the database is the backup, else 1."""
        try:
            former = restore(args.file, database_path(args.database), overwrite=args.force)
        except StartError as error:
            return _fail("restore", error)
        kept = f"; what was there is now {former}" if former else ""
        print(f"{args.database} is restored from {args.file}{kept}")  # noqa: T201 - the command's answer
        return 0


BACKUP = BackupCommand()
RESTORE = RestoreCommand()


def _common_options(parser: argparse.ArgumentParser) -> None:
    add_option(parser, "database", URL, Config().database, "where the server keeps its state, as sqlite:///FILE")
    parser.add_argument("--force", action="store_true", help="replace what is there")


def _fail(command: str, error: StartError) -> int:
    print(f"wattwise {command}: {error}", file=sys.stderr)  # noqa: T201 - the command's answer
    return 1
