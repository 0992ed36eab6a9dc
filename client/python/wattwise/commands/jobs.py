"""`wattwise jobs`: list, show, watch, export, control and delete jobs."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import TYPE_CHECKING

from wattwise.commands.main import complain
from wattwise.commands.options import add_credential_options, add_server_option, credentials_of
from wattwise.commands.parsing import Entry, Parser, add_entries
from wattwise.streams import MISUSED

if TYPE_CHECKING:
    from wattwise.commands.actions import Handler

ACTIONS: Mapping[str, Entry] = {
    "list": Entry("wattwise.commands.listing:add_list", "list all jobs, those that need attention first"),
    "show": Entry(
        "wattwise.commands.showing:add_show",
        "show a job: its configuration, its progress and the state of every batch size",
    ),
    "savings": Entry(
        "wattwise.commands.savings:add_savings", "show what a job saved and what that rests on, or what all jobs saved"
    ),
    "watch": Entry(
        "wattwise.commands.watch:add_watch",
        "watch the trials of a job, or the jobs with running trials, as they change",
    ),
    "trials": Entry("wattwise.commands.listing:add_trials", "list a job's trials by number"),
    "trial": Entry("wattwise.commands.showing:add_trial", "show a trial: its facts, its epochs and its power profile"),
    "events": Entry("wattwise.commands.events:add_events", "list what happened to a job, or to all jobs, newest first"),
    "export": Entry(
        "wattwise.commands.export:add_export", "write the trials of a job, or of all jobs, as CSV or JSON Lines"
    ),
    "reset": Entry(
        "wattwise.commands.control:add_reset",
        "begin a job's search again; its trials stay in the history but no longer count",
    ),
    "exclude-trial": Entry(
        "wattwise.commands.control:add_exclude_trial",
        "ignore a trial whose measurements are wrong; the search is rebuilt without it",
    ),
    "include-trial": Entry(
        "wattwise.commands.control:add_include_trial",
        "count a trial again that was excluded; the search is rebuilt with it",
    ),
    "ban": Entry("wattwise.commands.control:add_ban", "never choose a batch size, until it is unbanned"),
    "unban": Entry("wattwise.commands.control:add_unban", "lift the ban of a batch size"),
    "readmit": Entry(
        "wattwise.commands.control:add_readmit",
        "let the search choose a batch size again that was pruned, set aside or out of memory",
    ),
    "pin": Entry("wattwise.commands.control:add_pin", "give every launch this batch size, until it is unpinned"),
    "unpin": Entry("wattwise.commands.control:add_unpin", "let the search choose again instead of the pinned one"),
    "pause": Entry(
        "wattwise.commands.control:add_pause",
        "pause a job's search: launches get the best known batch size, and nothing is tried",
    ),
    "resume": Entry("wattwise.commands.control:add_resume", "let a paused search go on"),
    "baseline": Entry(
        "wattwise.commands.control:add_baseline", "give the next launch the default batch size, to compare with"
    ),
    "set-policy": Entry(
        "wattwise.commands.control:add_set_policy", "change a job's policy; its search is rebuilt from its trials"
    ),
    "import": Entry(
        "wattwise.commands.importing:add_import",
        "import a job's trials from before it used Wattwise, from a CSV file",
    ),
    "delete": Entry("wattwise.commands.control:add_delete", "delete a job and its trials; running trials are stopped"),
}
_TIMEOUT_SECONDS = 10.0
_EXAMPLES = """examples:
  wattwise jobs list --prefix team-a-
  wattwise jobs list --sort age --limit 10
  wattwise jobs trials mnist-nightly --status running
  wattwise jobs trials mnist-nightly --columns trial,batch-size,cost --sort cost
  wattwise jobs trial mnist-nightly 7
  wattwise jobs show mnist-nightly --server cluster:50051 --json
  wattwise jobs savings mnist-nightly
  wattwise jobs watch mnist-nightly
  wattwise jobs export mnist-nightly --output trials.csv
  wattwise jobs readmit mnist-nightly 512
  wattwise jobs import mnist-nightly trials.csv --dry-run
"""


class JobsCommand:
    """The `jobs` subcommand of `wattwise`."""

    def add_arguments(self, parser: Parser, /) -> None:
        """Declares the actions."""
        parser.formatter_class = argparse.RawDescriptionHelpFormatter
        parser.epilog = _EXAMPLES
        add_entries(parser, "ACTION", ACTIONS, _declare)

    def run(self, args: argparse.Namespace, /) -> int:
        """Calls the server and prints its answer; returns 2 for wrong usage, such as a deletion without --yes, else 0.

        Raises:
            WattwiseError: if the server refuses or is away.
        """
        from wattwise.commands.actions import near_ids  # noqa: PLC0415 - imported with the action anyway
        from wattwise.commands.rows import unused_options  # noqa: PLC0415 - likewise
        from wattwise.rpc.answers import shown_from  # noqa: PLC0415 - likewise
        from wattwise.rpc.client import Client  # noqa: PLC0415 - `wattwise jobs --help` calls no server

        if wrong := unused_options(args):
            complain(f"wattwise jobs: {wrong}")
            return MISUSED
        # A user is waiting: no retries, so that a server that is away is reported at once.
        with Client(args.server, timeout=_TIMEOUT_SECONDS, retry=False, credentials=credentials_of(args)) as client:
            handler: Handler = args.handler
            with near_ids(client, getattr(args, "job_id", None)), shown_from(client.address):
                return handler(client, args)


COMMAND = JobsCommand()


def _declare(_name: str, entry: Entry, parser: Parser) -> None:
    add_server_option(parser)
    add_credential_options(parser)
    parser.add_argument("--json", action="store_true", help="print a JSON document with the fields of the API")
    entry.load()(parser)
