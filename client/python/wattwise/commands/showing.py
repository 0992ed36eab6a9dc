"""`wattwise jobs show` and `wattwise jobs trial`."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from contextlib import suppress
from urllib.parse import quote, urlsplit

from wattwise import v1
from wattwise.commands.actions import add_id, add_trial_number, plain, print_json
from wattwise.commands.main import complain, say
from wattwise.commands.rows import add_table_options, print_table, table_options
from wattwise.commands.savings import figures_of
from wattwise.commands.tables import print_job
from wattwise.presentation.facts import trial_facts, trial_reasons, trial_warnings
from wattwise.presentation.quantities import (
    duration,
    energy,
    energy_of,
    estimate_mark,
    joules,
    metric,
    optional,
    step_energy,
    step_time,
    watts_per_gpu,
)
from wattwise.presentation.states import JobTrial, result
from wattwise.presentation.terminal import Column, Mark, estimate_marks, numbers, print_facts, times
from wattwise.rpc.client import Client
from wattwise.streams import MISUSED
from wattwise.variables import control_fault

WEB_URL = "WATTWISE_WEB_URL"
"""The variable with the URL of `wattwise web`."""
USUAL_WEB_URL = "http://127.0.0.1:8080"
"""Where `wattwise web` listens without options."""


def add_show(parser: argparse.ArgumentParser) -> None:
    """Declares `show`."""
    parser.set_defaults(handler=_show)
    add_id(parser)
    parser.add_argument(
        "--wide",
        action="store_true",
        help="show also what the expected costs rest on, means in money and power limits, whatever the width of the "
        "terminal",
    )
    parser.add_argument(
        "--web",
        nargs="?",
        const="",
        metavar="URL",
        help=f"print only the URL of the job's page at `wattwise web`, which listens at URL (${WEB_URL}, default: "
        f"{USUAL_WEB_URL})",
    )


def add_trial(parser: argparse.ArgumentParser) -> None:
    """Declares `trial`."""
    parser.set_defaults(handler=_trial)
    add_id(parser)
    add_trial_number(parser)
    add_table_options(parser, EPOCH_COLUMNS)


def _show(client: Client, args: argparse.Namespace) -> int:
    configured = os.environ.get(WEB_URL, "")
    base = args.web or configured or USUAL_WEB_URL
    # Other forms than --web need no URL: a wrong variable must not break them.
    wrong = _fault_of(base)
    if args.web is not None and (args.json or wrong):
        complain(f"wattwise jobs show: {'--web cannot be combined with --json' if args.json else wrong}")
        return MISUSED
    known = client.get_job(args.job_id)
    if args.web is not None:
        say(page_of(base, args.job_id))
    elif args.json:
        print_json(plain(known))
    else:
        page = [("page", page_of(base, args.job_id))] if configured and not wrong else []
        figures = figures_of(client, known.job, known.details)
        figures = figures._replace(lines=[*figures.lines, *page])
        print_job(known.job, known.details, figures, wide=args.wide)
    return 0


def page_of(base: str, job_id: str) -> str:
    """Returns the URL of a job's page, below that of the site."""
    return f"{base.rstrip('/')}/job?id={quote(job_id, safe='')}"


def _fault_of(base: str) -> str:
    """Returns what is wrong with the URL of the site; empty if it can be used."""
    if fault := control_fault(base):
        return f"{WEB_URL} {fault}"
    with suppress(ValueError):
        parts = urlsplit(base)
        if parts.scheme in ("http", "https") and parts.netloc and not parts.query and not parts.fragment:
            return ""
    return f"{base!r} is not the URL of a site; use one such as https://wattwise.example ({WEB_URL}, or --web URL)"


def _trial(client: Client, args: argparse.Namespace) -> int:
    options = table_options(args)
    found = client.get_trial(v1.TrialId(job_id=args.job_id, trial_number=args.trial_number))
    measurements = client.measurements(found.trial.id)
    mark = estimate_mark(found.trial.monitor)
    marks: list[Mark[v1.Measurement]] = [estimate_marks(("energy so far",), lambda _epoch: mark)]
    if args.json:
        print_json({**plain(found), "measurements": [plain(measurement) for measurement in measurements]})
    elif options.tsv or not options.headers:
        print_table(EPOCH_COLUMNS, list(measurements), options, marks=marks)
    else:
        _print_trial(client.get_job(args.job_id).job, found.trial)
        print()  # noqa: T201 - the command's answer
        empty = "no epochs: none was reported, or the server no longer keeps them"
        print_table(EPOCH_COLUMNS, list(measurements), options, empty=empty, marks=marks)
        if found.HasField("power_profile"):
            print()  # noqa: T201 - the command's answer
            print_table(_LIMIT_COLUMNS, found.power_profile.limits)
    return 0


def _print_trial(job: v1.Job, trial: v1.Trial) -> None:
    facts = [
        ("trial", f"{trial.id.trial_number} of {job.spec.job_id}"),
        ("result", result(JobTrial(job, trial))),
        *trial_reasons(trial),
        *trial_facts(job, trial),
        *((f"label {name}", value) for name, value in sorted(trial.labels.items())),
        *trial_warnings(trial),
    ]
    print_facts(facts)


EPOCH_COLUMNS: Sequence[Column[v1.Measurement]] = (
    numbers("epoch", lambda epoch: epoch.epoch),
    numbers("metric", lambda epoch: epoch.metric, metric, priority=1),
    numbers("time so far", lambda epoch: epoch.time_seconds, duration, priority=2),
    numbers("energy so far", energy_of, energy, priority=3),
    times("reported", lambda epoch: optional(epoch, "report_time"), priority=4),
)
"""The columns of the epochs of a trial; sums since its start."""

_LIMIT_COLUMNS: Sequence[Column[v1.ProfiledLimit]] = (
    numbers("power limit", lambda limit: limit.power_setting.limit_watts_per_gpu, watts_per_gpu),
    numbers("cost of a step", lambda limit: limit.cost_per_step, joules, priority=1),
    numbers("time of a step", lambda limit: limit.time_seconds_per_step, step_time, priority=2),
    numbers("energy of a step", step_energy, joules, priority=3),
)
"""The columns of the power limits that a trial has profiled, for one training step."""
