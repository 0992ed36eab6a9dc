"""`wattwise migrate` creates or migrates a database, for those who do not want the servers to do it."""

from __future__ import annotations

import argparse
import asyncio
import sys
from typing import TYPE_CHECKING

from wattwise_server.config import Config
from wattwise_server.errors import StartError
from wattwise_server.options import DATABASE_HELP, URL, add_option

if TYPE_CHECKING:
    from wattwise_server.store.base import Migrated


class MigrateCommand:
    """The `migrate` subcommand of `wattwise`."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declares the options."""
        add_option(parser, "database", URL, Config().database, DATABASE_HELP)

    def run(self, args: argparse.Namespace) -> int:
        """Migrates; returns 0, or 1 if it failed."""
        from wattwise_server.observability.logs import configure  # noqa: PLC0415 - slow, and unused by --help
        from wattwise_server.store.open import migrate, shown_url  # noqa: PLC0415 - likewise

        configure("warning", "human")
        try:
            done = asyncio.run(migrate(args.database))
        except StartError as error:
            print(f"wattwise migrate: {error}", file=sys.stderr)  # noqa: T201 - the command's answer
            return 1
        print(f"{shown_url(args.database)} {described(done)}")  # noqa: T201 - the command's answer
        return 0


COMMAND = MigrateCommand()


def described(done: Migrated) -> str:
    """Says what a migration has done."""
    before, now, by_another = done
    what = f"migrated it from {before}" if before else "created it"
    if by_another:
        return f"has schema version {now} already: another process {what} just now"
    if before == now:
        return f"has schema version {now} already"
    return f"was migrated from schema version {before} to {now}" if before else f"was created with schema version {now}"
