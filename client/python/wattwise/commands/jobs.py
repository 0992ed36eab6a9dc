"""`wattwise jobs`: list, show, watch, export, control and delete jobs."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from itertools import chain, islice
from urllib.parse import quote, urlsplit

from wattwise import v1
from wattwise.commands.actions import Handler, add_id, plain, positive, print_json
from wattwise.commands.columns import add_table_options, arrange, table_options, unused_with_json
from wattwise.commands.control import add_control
from wattwise.commands.events import add_events
from wattwise.commands.export import add_export
from wattwise.commands.importing import add_import
from wattwise.commands.main import MISUSED, complain, say, sentence
from wattwise.commands.options import add_credential_options, credentials_of
from wattwise.commands.savings import add_savings, figures_of
from wattwise.commands.tables import (
    END_REASONS,
    JOB_COLUMNS,
    TRIAL_COLUMNS,
    TRIAL_STATUSES,
    JobTrial,
    print_job,
    print_jobs,
    print_trials,
)
from wattwise.commands.watch import add_watch
from wattwise.errors import printable
from wattwise.rpc.client import Client

WEB_URL = "WATTWISE_WEB_URL"
"""The variable with the URL of `wattwise web`."""
_TIMEOUT_SECONDS = 10.0
_PAGE = 1000
_EXAMPLES = """examples:
  wattwise jobs list --prefix team-a-
  wattwise jobs list --sort age --limit 10
  wattwise jobs trials mnist-nightly --status dispatched
  wattwise jobs trials mnist-nightly --columns trial,batch-size,cost --sort cost
  wattwise jobs show mnist-nightly --server cluster:50051 --json
  wattwise jobs savings mnist-nightly
  wattwise jobs watch mnist-nightly
  wattwise jobs export mnist-nightly --output trials.csv
  wattwise jobs allow mnist-nightly 512
  wattwise jobs import mnist-nightly trials.csv --dry-run
"""


class JobsCommand:
    """The `jobs` subcommand of `wattwise`."""

    help = "list, show, watch, export, control and delete jobs"

    def add_arguments(self, parser: argparse.ArgumentParser, /) -> None:
        """Declares the actions."""
        parser.formatter_class = argparse.RawDescriptionHelpFormatter
        parser.epilog = _EXAMPLES
        common = _common_options()
        actions = parser.add_subparsers(metavar="ACTION", required=True)

        def add(name: str, text: str, handler: Handler) -> argparse.ArgumentParser:
            action = actions.add_parser(name, help=text, description=sentence(text), parents=[common])
            action.set_defaults(handler=handler)
            return action

        listing = add("list", "list all jobs, oldest first", _list)
        listing.add_argument("--prefix", default="", help="only jobs whose id has this prefix")
        add_table_options(listing, JOB_COLUMNS)
        show = add("show", "show a job: its configuration, its progress and the state of every batch size", _show)
        add_id(show)
        show.add_argument(
            "--web",
            nargs="?",
            const="",
            metavar="URL",
            help="print only the URL of the job's page at `wattwise web`, which listens at URL ($WATTWISE_WEB_URL)",
        )
        add_savings(add)
        add_watch(add)
        trials = add("trials", "list a job's trials by number", _trials)
        add_id(trials)
        trials.add_argument("--status", choices=TRIAL_STATUSES, help="only trials with this status")
        trials.add_argument(
            "--batch-size", type=positive, default=0, metavar="N", help="only trials with this batch size"
        )
        trials.add_argument("--end-reason", choices=END_REASONS, help="only trials that ended for this reason")
        add_table_options(trials, TRIAL_COLUMNS)
        add_events(add)
        add_export(add)
        add_control(add)
        add_import(add)
        delete = add("delete", "delete a job and its trials; running trials are stopped", _delete)
        add_id(delete)
        delete.add_argument("--yes", action="store_true", help="do not ask for confirmation")

    def run(self, args: argparse.Namespace, /) -> int:
        """Calls the server and prints its answer; returns 2 for wrong usage, such as a deletion without --yes, else 0.

        Raises:
            WattwiseError: the server refuses or is away.
        """
        if wrong := unused_with_json(args):
            complain(f"wattwise jobs: {wrong}")
            return MISUSED
        # A user is waiting: no retries, so that a server that is away is reported at once.
        with Client(args.server, timeout=_TIMEOUT_SECONDS, retry=False, credentials=credentials_of(args)) as client:
            handler: Handler = args.handler
            return handler(client, args)


COMMAND = JobsCommand()


def _list(client: Client, args: argparse.Namespace) -> int:
    jobs, options = client.list_jobs(job_id_prefix=args.prefix), table_options(args)
    if args.json:
        print_json([plain(job) for job in arrange(JOB_COLUMNS, jobs, options)[0]])
    else:
        print_jobs(jobs, options)
    return 0


def _show(client: Client, args: argparse.Namespace) -> int:
    # Other forms than --web need no URL: a wrong variable must not break them.
    base = args.web or os.environ.get(WEB_URL, "")
    wrong = _fault_of(base)
    if args.web is not None and (args.json or wrong):
        complain(f"wattwise jobs show: {'--web cannot be combined with --json' if args.json else wrong}")
        return MISUSED
    job = client.get_job(args.job_id)
    if args.web is not None:
        say(page_of(base, args.job_id))
    elif args.json:
        print_json(plain(job))
    else:
        page = [] if wrong else [("page", page_of(base, args.job_id))]
        figures = figures_of(client, job)
        trials = client.list_trials(args.job_id, page_size=_PAGE)
        print_job(job, trials, [*figures.lines, *page], figures.money)
    return 0


def page_of(base: str, job_id: str) -> str:
    """The URL of a job's page, below that of the site."""
    return f"{base.rstrip('/')}/job?id={quote(job_id, safe='')}"


def _fault_of(base: str) -> str:
    """What is wrong with the URL of the site; empty if it can be used."""
    if not base:
        return f"--web needs the URL of `wattwise web`, such as https://wattwise.example, which {WEB_URL} can set"
    with suppress(ValueError):
        parts = urlsplit(base)
        if parts.scheme in ("http", "https") and parts.netloc and not parts.query and not parts.fragment:
            return ""
    return f"{base!r} is not the URL of a site; use one such as https://wattwise.example ({WEB_URL}, or --web URL)"


def _trials(client: Client, args: argparse.Namespace) -> int:
    job, options = client.get_job(args.job_id), table_options(args)
    end_reason = END_REASONS.get(args.end_reason, v1.END_REASON_UNSPECIFIED)
    backwards = options.reverse and options.sort is None
    found = client.list_trials(
        args.job_id,
        status=TRIAL_STATUSES.get(args.status, v1.TRIAL_STATUS_UNSPECIFIED),
        end_reason=end_reason,
        batch_size=args.batch_size,
        newest_first=backwards,
        page_size=0 if options.limit is None else min(options.limit + 1, _PAGE),
    )
    # An older server ignores what it does not know.
    trials: Iterable[v1.Trial] = (trial for trial in found if end_reason in (trial.end_reason, 0))
    if backwards:
        trials, options = _newest_first(trials), replace(options, reverse=False)
    if args.json:
        rows = (JobTrial(job, trial) for trial in trials)
        print_json([plain(row.trial) for row in arrange(TRIAL_COLUMNS, rows, options)[0]])
    else:
        print_trials(job, trials, options)
    return 0


def _newest_first(trials: Iterable[v1.Trial]) -> Iterable[v1.Trial]:
    """The trials, of which an older server sends the oldest first."""
    rest = iter(trials)
    first = list(islice(rest, 2))
    if len(first) == 2 and first[0].id.trial_number < first[1].id.trial_number:
        return reversed([*first, *rest])
    return chain(first, rest)


def _delete(client: Client, args: argparse.Namespace) -> int:
    if not args.yes:
        if not sys.stdin.isatty():
            complain(f"wattwise jobs delete: stdin is not a terminal; add --yes to delete {args.job_id}")
            return MISUSED
        question = f"Delete {args.job_id} and its {client.get_job(args.job_id).num_trials} trials? [y/N] "
        # On stderr: stdout is for the answer.
        print(printable(question), end="", file=sys.stderr, flush=True)  # noqa: T201 - a question to the user
        if sys.stdin.readline().strip().lower() not in {"y", "yes"}:
            complain("Not deleted.")
            return 0
    response = client.delete_job(args.job_id)
    if args.json:
        print_json(plain(response))
    else:
        stopped = len(response.stopped_trials)
        say(f"Deleted {args.job_id}; running trials stopped: {stopped}.")
    return 0


def _common_options() -> argparse.ArgumentParser:
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument(
        "--server",
        default=os.environ.get("WATTWISE_SERVER") or "localhost:50051",
        metavar="ADDRESS",
        help="the server's host:port, or several with commas ($WATTWISE_SERVER; default: localhost:50051)",
    )
    add_credential_options(common)
    common.add_argument("--json", action="store_true", help="print a JSON document with the fields of the API")
    return common
