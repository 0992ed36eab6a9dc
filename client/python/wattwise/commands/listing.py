"""`wattwise jobs list` and `wattwise jobs trials`."""

from __future__ import annotations

import argparse
from dataclasses import replace

from wattwise.commands.actions import add_id, plain, positive, print_json
from wattwise.commands.rows import add_table_options, arrange, table_options
from wattwise.commands.tables import JOB_COLUMNS, TRIAL_COLUMNS, listed_jobs, print_jobs, print_trials
from wattwise.presentation.states import END_REASONS, TRIAL_STATUSES, JobTrial
from wattwise.rpc.client import Client


def add_list(parser: argparse.ArgumentParser) -> None:
    """Declares `list`."""
    parser.set_defaults(handler=_list)
    parser.add_argument("--prefix", default="", help="only jobs whose id has this prefix")
    add_table_options(parser, JOB_COLUMNS)


def add_trials(parser: argparse.ArgumentParser) -> None:
    """Declares `trials`."""
    parser.set_defaults(handler=_trials)
    add_id(parser)
    parser.add_argument("--status", choices=TRIAL_STATUSES, help="only trials with this status")
    parser.add_argument("--batch-size", type=positive, default=0, metavar="N", help="only trials with this batch size")
    parser.add_argument("--end-reason", choices=END_REASONS, help="only trials that ended for this reason")
    parser.add_argument(
        "--label",
        dest="labels",
        type=_label,
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="only trials of launches with this label, such as host=node-7; of several labels, with all of them",
    )
    add_table_options(parser, TRIAL_COLUMNS)


def _label(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not (key and equals):
        raise argparse.ArgumentTypeError(f"{text!r} is not a label; write KEY=VALUE, such as host=node-7")
    return key, value


def _list(client: Client, args: argparse.Namespace) -> int:
    options = table_options(args)
    jobs = listed_jobs(client, args.prefix, options)
    if args.json:
        print_json([plain(job) for job in arrange(JOB_COLUMNS, jobs, options)[0]])
    else:
        print_jobs(jobs, client.get_server_info().factors, options)
    return 0


def _trials(client: Client, args: argparse.Namespace) -> int:
    job, options = client.get_job(args.job_id).job, table_options(args)
    backwards = options.reverse and options.sort is None
    if backwards:
        options = replace(options, reverse=False)
    trials = client.trials(
        args.job_id,
        statuses=[TRIAL_STATUSES[args.status]] if args.status else (),
        end_reasons=[END_REASONS[args.end_reason]] if args.end_reason else (),
        batch_size=args.batch_size,
        labels=dict(args.labels),
        newest_first=backwards,
        page_size=options.page_size,
    )
    if args.json:
        rows = (JobTrial(job, trial) for trial in trials)
        print_json([plain(row.trial) for row in arrange(TRIAL_COLUMNS, rows, options)[0]])
    else:
        print_trials(job, trials, options)
    return 0
