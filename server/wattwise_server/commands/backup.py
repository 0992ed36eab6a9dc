"""`wattwise backup` copies the database to a file while a server runs; `wattwise restore` puts it back."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from wattwise_server.config import Config
from wattwise_server.errors import StartError
from wattwise_server.options import URL, add_option


class BackupCommand:
    """The `backup` subcommand of `wattwise`."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declares the options."""
        parser.add_argument("file", metavar="FILE", type=Path, help="the file to create")
        _common_options(parser)

    def run(self, args: argparse.Namespace) -> int:
        """Makes and checks the copy; returns 0, or 1 if it failed."""
        from wattwise_server.store.sqlite.backup import backup  # noqa: PLC0415 - slow, and unused by --help

        try:
            backup(_file_of("backup", args.database), args.file, overwrite=args.force)
        except StartError as error:
            return _fail("backup", error)
        print(f"copied {args.database} to {args.file}; the copy is intact")  # noqa: T201 - the command's answer
        return 0


class RestoreCommand:
    """The `restore` subcommand of `wattwise`."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declares the options."""
        parser.add_argument("file", metavar="FILE", type=Path, help="the backup")
        _common_options(parser)

    def run(self, args: argparse.Namespace) -> int:
        """Restores; returns 0, or 1 if it failed."""
        from wattwise_server.store.sqlite.backup import restore  # noqa: PLC0415 - slow, and unused by --help

        try:
            former = restore(args.file, _file_of("restore", args.database), overwrite=args.force)
        except StartError as error:
            return _fail("restore", error)
        kept = f"; the previous database is kept as {former}" if former else ""
        print(f"restored {args.database} from {args.file}{kept}")  # noqa: T201 - the command's answer
        return 0


BACKUP = BackupCommand()
RESTORE = RestoreCommand()


def _common_options(parser: argparse.ArgumentParser) -> None:
    add_option(parser, "database", URL, Config().database, "the server's database, as sqlite:///FILE")
    parser.add_argument("--force", action="store_true", help="replace an existing file")


_OTHER_TOOLS = {"backup": "pg_dump or pgBackRest", "restore": "pg_restore or pgBackRest"}


def _file_of(command: str, url: str) -> Path:
    from wattwise_server.store.open import is_shared, shown_url  # noqa: PLC0415 - slow, and unused by --help
    from wattwise_server.store.sqlite.open import database_path  # noqa: PLC0415 - likewise

    if is_shared(url):
        raise StartError(
            f"{shown_url(url)} is a PostgreSQL: use its own tools, {_OTHER_TOOLS[command]}, as docs/operations.md shows"
        )
    return database_path(url)


def _fail(command: str, error: StartError) -> int:
    print(f"wattwise {command}: {error}", file=sys.stderr)  # noqa: T201 - the command's answer
    return 1
