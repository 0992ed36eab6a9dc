"""`wattwise copy` moves everything from one database to another, such as from SQLite to PostgreSQL."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from wattwise_server.errors import StartError
from wattwise_server.options import URL

if TYPE_CHECKING:
    from wattwise_server.store.copying import Copied

_URLS = "as sqlite:///FILE, postgresql://USER@HOST/DATABASE, or @FILE for a file with the URL"


class CopyCommand:
    """The `copy` subcommand of `wattwise`."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declares the arguments."""
        parser.add_argument("source", metavar="SOURCE", type=URL.parse, help=f"the database to read, {_URLS}")
        text = "an empty database, which is created or migrated first, in the same form"
        parser.add_argument("target", metavar="TARGET", type=URL.parse, help=text)

    def run(self, args: argparse.Namespace) -> int:
        """Copies and compares; returns 0, or 1 if the target was left empty."""
        from wattwise_server.observability.logs import configure  # noqa: PLC0415 - slow, and unused by --help
        from wattwise_server.store.copying import copy  # noqa: PLC0415 - likewise
        from wattwise_server.store.open import shown_url  # noqa: PLC0415 - likewise

        configure("warning", "human")
        progress = _Progress()
        try:
            copied = asyncio.run(copy(args.source, args.target, progress.show))
        except StartError as error:
            progress.clear()
            print(f"wattwise copy: {error}", file=sys.stderr)  # noqa: T201 - the command's answer
            return 1
        except KeyboardInterrupt:
            progress.clear()
            raise
        progress.clear()
        _print(copied)
        rows = sum(each.rows for each in copied)
        both = f"{shown_url(args.source)} to {shown_url(args.target)}"
        print(f"copied {rows} rows from {both}; the checksums of both are equal")  # noqa: T201 - the command's answer
        return 0


COMMAND = CopyCommand()


class _Progress:
    """One line on a terminal, which is overwritten."""

    def __init__(self) -> None:
        self._shown = sys.stderr.isatty()

    def show(self, action: str, table: str, done: int, total: int) -> None:
        """Shows how far a table is."""
        if self._shown:
            print(f"\r\033[K{action} {table}: {done:,} of {total:,}", end="", file=sys.stderr, flush=True)  # noqa: T201

    def clear(self) -> None:
        """Removes the line."""
        if self._shown:
            print("\r\033[K", end="", file=sys.stderr, flush=True)  # noqa: T201 - a terminal


def _print(copied: Sequence[Copied]) -> None:
    width = max(len(each.table) for each in copied)
    for table, rows, checksum in copied:
        print(f"{table:{width}}  {rows:>12}  {checksum}")  # noqa: T201 - the command's answer
