"""`wattwise jobs events`: what happened to a job, or to all."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from itertools import chain

from wattwise import v1
from wattwise.commands.actions import add_jobs, plain, print_json
from wattwise.commands.rows import add_table_options, arrange, print_table, table_options
from wattwise.presentation.quantities import moment, optional
from wattwise.presentation.states import EVENT_KINDS, event_kind
from wattwise.presentation.terminal import Column, numbers, print_text, times
from wattwise.rpc.client import Client

_INDENT = 2


def add_events(parser: argparse.ArgumentParser) -> None:
    """Declares the action."""
    parser.set_defaults(handler=_events)
    add_jobs(parser)
    parser.add_argument("--kind", choices=EVENT_KINDS, metavar="KIND", help=f"only this kind: {', '.join(EVENT_KINDS)}")
    add_table_options(parser, EVENT_COLUMNS)


def _events(client: Client, args: argparse.Namespace) -> int:
    options = table_options(args)
    listed = client.events(
        job_id=args.job_id or "",
        job_id_prefix=args.prefix,
        kinds=[EVENT_KINDS[args.kind]] if args.kind else (),
        page_size=options.page_size,
    )
    events = _checked(client, args.job_id, listed)
    if args.json:
        print_json([plain(event) for event in arrange(EVENT_COLUMNS, events, options)[0]])
    elif options.tsv or options.wide or options.columns is not None:
        print_table(EVENT_COLUMNS, events, options, empty="no events")
    else:
        first, more = arrange(EVENT_COLUMNS, events, options)
        if not first and options.headers:
            print_text("no events", _INDENT)
        _print_sentences(first, more and options.headers, one_job=args.job_id is not None)
    return 0


def _checked(client: Client, job_id: str | None, events: Iterator[v1.Event]) -> Iterator[v1.Event]:
    """Returns the events; those of a deleted job are kept.

    Raises:
        JobNotFoundError: if there is neither such a job nor an event of one.
    """
    first = next(events, None)
    if first is not None:
        return chain([first], events)
    if job_id and next(client.events(job_id=job_id, page_size=1), None) is None:
        client.get_job(job_id)
    return events


def _print_sentences(events: Sequence[v1.Event], more: bool, *, one_job: bool) -> None:
    """Prints a line for each, which a narrow terminal gets as several: sentences do not fit columns."""
    for event in events:
        job = "" if one_job else f"{event.job_id}: "
        token = f" (token {event.token_id})" if event.token_id else ""
        print_text(f"{moment(event.time)}  {job}{event.message}{token}", _INDENT)
    if more:
        print_text("Only the first events are shown; there are more.", _INDENT)


EVENT_COLUMNS: Sequence[Column[v1.Event]] = (
    times("time", lambda event: event.time),
    Column("job", lambda event: event.job_id, priority=1),
    Column("kind", lambda event: event_kind(event.kind), priority=2),
    numbers("trial", lambda event: optional(event, "trial_number"), priority=3),
    numbers("batch size", lambda event: optional(event, "batch_size"), priority=4),
    Column("token", lambda event: event.token_id, priority=6),
    Column("message", lambda event: event.message, priority=5),
)
"""The columns of a list of events."""
