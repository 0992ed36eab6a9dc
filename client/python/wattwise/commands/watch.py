"""`wattwise jobs watch`: the trials of a job, or the jobs with running trials, as they change.

A terminal shows a table that is drawn again; anything else, also a terminal that cannot move its cursor or a machine
without `rich`, gets a line for each change.
"""

from __future__ import annotations

import argparse
import json
import math
import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from wattwise import v1
from wattwise.commands.actions import add_jobs, plain
from wattwise.commands.main import complain
from wattwise.commands.savings import JOB_SAVINGS_COLUMNS
from wattwise.commands.tables import COMPUTED_COSTS, COST_AND_BOUND, JOB_ESTIMATES, TRIAL_COLUMNS, USAGE_ESTIMATES
from wattwise.errors import JobNotFoundError, ServerUnavailableError, WattwiseError
from wattwise.monitor.kind import EnergyQuality
from wattwise.presentation.quantities import joules, marked, metric, optional, quality_of
from wattwise.presentation.sentences import number_of, upcoming
from wattwise.presentation.states import (
    JobTrial,
    batch_size_in_use,
    direction,
    job_state,
    listed_state,
    mark_of,
)
from wattwise.presentation.terminal import Column, Mark, Row, ages, fit, live_console
from wattwise.presentation.trial_fields import FIELDS
from wattwise.rpc.backoff import pauses
from wattwise.rpc.client import Client
from wattwise.rules import MAX_PAGE
from wattwise.streams import printable

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

_MOST_LOOKUPS = 50
"""If more jobs change within a second, all running ones are read again."""
_FIRST_TRIALS = 10
"""Ended trials that a table begins with."""
_KEPT_ROWS = 200
"""Rows that are kept for a table: more than any terminal shows."""
_MOST_RUNNING = 10_000
"""Running trials that are remembered; a server lets a job have a tenth of them, unless its operator says otherwise."""
_MOST_WAITING = 100
"""Changes that wait to be shown; then the server has to wait."""
_REFRESHES_PER_SECOND = 2


class Deleted(NamedTuple):
    """A job was deleted."""

    job_id: str


class Away(NamedTuple):
    """The server does not answer; it is asked again until it does."""

    error: WattwiseError


_News: TypeAlias = "v1.WatchJobResponse | v1.PreviewNextResponse | v1.JobListing | v1.Trial | Deleted"
Change: TypeAlias = "_News | Away"
Show: TypeAlias = Callable[[Change], None]
_Table: TypeAlias = "_TrialTable | _JobTable"


def add_watch(parser: argparse.ArgumentParser) -> None:
    """Declares the action."""
    parser.set_defaults(handler=_watch)
    add_jobs(parser, "the jobs with running trials")


def _watch(client: Client, args: argparse.Namespace) -> int:
    console = None if args.json else live_console()
    if args.job_id is None:
        client.get_totals(job_id_prefix=args.prefix)
        display = _display(console, _Lines(None, as_json=args.json), _JobTable)
        changes = _changes_of([lambda: _job_changes(client, args.prefix)])
    else:
        known = client.get_job(args.job_id)
        newest = list(_newest_trials(client, args.job_id))
        lines = _Lines(known.job.spec, as_json=args.json)
        display = _display(console, lines, lambda: _TrialTable(known, newest))
        # The stream does not mention those that end before it is open.
        running = {trial.id.trial_number for trial in newest if trial.status == v1.TRIAL_STATUS_RUNNING}
        changes = _changes_of(
            [
                lambda: _job_states(client, args.job_id, with_choices=console is not None),
                lambda: _trial_changes(client, args.job_id, running),
            ]
        )
    with display as show:
        _show_all(show, changes, args.job_id)
    return 0


def _show_all(show: Show, changes: Iterator[Change], job_id: str | None) -> None:
    """Shows changes until the watched job is deleted."""
    try:
        for change in changes:
            show(change)
    except JobNotFoundError:
        if job_id is None:
            raise
        show(Deleted(job_id))


def _job_states(client: Client, job_id: str, *, with_choices: bool) -> Iterator[_News]:
    """Yields the states of a job, each followed by what the next launch would get if that is shown."""
    for state in client.watch_job(job_id):
        yield state
        if with_choices:
            yield client.preview_next(job_id)


def _trial_changes(client: Client, job_id: str, running: set[int]) -> Iterator[v1.Trial]:
    """Yields the running trials of a job, then those that change.

    Args:
        client: calls the server.
        job_id: the job.
        running: the trials that ran before the stream, or when it was lost; kept up to date.
    """
    lost = set(running)
    for answer in client.watch_trials(job_id):
        # The first answer has those that run; the others have ended while the stream was away.
        lost -= {trial.id.trial_number for trial in answer.trials}
        ended = [client.get_trial(v1.TrialId(job_id=job_id, trial_number=number)).trial for number in sorted(lost)]
        lost = set()
        for trial in (*ended, *answer.trials):
            number = trial.id.trial_number
            (running.add if trial.status == v1.TRIAL_STATUS_RUNNING else running.discard)(number)
            if len(running) > _MOST_RUNNING:
                running.pop()
            yield trial


def _job_changes(client: Client, prefix: str) -> Iterator[v1.JobListing | Deleted]:
    """Yields the jobs that run, then those that change, with their summaries."""
    running: set[str] = set()
    for answer in client.watch_jobs(job_id_prefix=prefix):
        changed = set(answer.job_ids)
        if answer.all_jobs or len(changed) > _MOST_LOOKUPS:
            changed |= running
            for row in client.jobs(
                job_id_prefix=prefix,
                states=[v1.JOB_STATE_RUNNING],
                order=v1.JOB_ORDER_LAST_ACTIVITY,
                with_summaries=True,
                page_size=MAX_PAGE,
            ):
                changed.discard(row.job.spec.job_id)
                running.add(row.job.spec.job_id)
                yield row
        for job_id in sorted(changed):
            found = _with_summary(client, job_id)
            if found is not None and found.summary.num_running_trials:
                running.add(job_id)
            else:
                running.discard(job_id)
            yield Deleted(job_id) if found is None else found


def _with_summary(client: Client, job_id: str) -> v1.JobListing | None:
    """Returns a job with its summary, which only lists have; None if there is none."""
    # Of the ids that begin with an id, it is the first one.
    jobs = client.jobs(job_id_prefix=job_id, order=v1.JOB_ORDER_ID, with_summaries=True, page_size=1)
    first = next(jobs, None)
    return first if first is not None and first.job.spec.job_id == job_id else None


def _changes_of(streams: Sequence[Callable[[], Iterator[_News]]]) -> Iterator[Change]:
    """Yields the changes of several streams as they come; opens a stream again while its server is away.

    Raises:
        WattwiseError: if a stream ended with an error, such as that its job was deleted.
    """
    changes: queue.Queue[Change | WattwiseError] = queue.Queue(_MOST_WAITING)
    stopped = threading.Event()

    def follow(opened: Callable[[], Iterator[_News]]) -> None:
        waits = pauses(0.1, 3.0)
        while not stopped.is_set():
            try:
                for change in opened():
                    waits = pauses(0.1, 3.0)
                    changes.put(change)
            except ServerUnavailableError as error:
                if not error.retryable:
                    changes.put(error)
                    return
                changes.put(Away(error))
            except WattwiseError as error:
                changes.put(error)
                return
            except ValueError:
                # The other stream has ended, and with it the client, in the middle of a call.
                if not stopped.is_set():
                    raise
                return
            stopped.wait(next(waits))

    for opened in streams:
        # Daemons: a stream that waits for its server must not keep the process.
        threading.Thread(target=follow, args=(opened,), daemon=True).start()
    try:
        while True:
            change = changes.get()
            if isinstance(change, WattwiseError):
                raise change
            yield change
    finally:
        stopped.set()


class _Lines:
    """A line for each change, which can be searched: "TIME trial job=ID trial=3 status=running …".

    TIME is when the change arrived here, so that times ascend.

    Args:
        as_json: whether each line is a JSON object with the fields of the API.
    """

    def __init__(self, spec: v1.JobSpec | None, *, as_json: bool) -> None:
        self._spec = spec
        self._json = as_json
        self._known: dict[str, object] = {}
        self._away = False

    def __call__(self, change: Change) -> None:
        if isinstance(change, Away):
            if not self._away:
                complain(f"wattwise jobs watch: waiting for the server: {change.error}")
            self._away = True
            return
        self._away = False
        match change:
            case Deleted(job_id):
                self._known.pop(f"job {job_id}", None)
                self._print({"deleted": job_id}, "deleted", {"job": job_id})
            case v1.WatchJobResponse() | v1.JobListing():
                facts = _watched_facts(change) if isinstance(change, v1.WatchJobResponse) else _listed_facts(change)
                # What is sent again after a lost connection is no change.
                if self._is_new(f"job {change.job.spec.job_id}", facts):
                    self._print(plain(change), "job", facts)
            case v1.Trial():
                facts = _trial_facts(change, self._spec or v1.JobSpec())
                # A line has less of a trial than its JSON.
                shown, ended = change if self._json else facts, change.HasField("end_time")
                if self._is_new(f"trial {change.id.trial_number}", shown, ended=ended):
                    self._print({"trial": plain(change)}, "trial", facts)

    def _is_new(self, key: str, value: object, *, ended: bool = False) -> bool:
        if self._known.get(key) == value:
            return False
        self._known[key] = value
        if len(self._known) > (_KEPT_ROWS if ended else _MOST_RUNNING):
            self._known.pop(next(iter(self._known)))
        return True

    def _print(self, document: Mapping[str, Any], kind: str, facts: Mapping[str, object]) -> None:
        if self._json:
            line = json.dumps(document, allow_nan=False)
        else:
            line = " ".join(
                (_now(), kind, *(f"{name}={_word(value)}" for name, value in facts.items() if value is not None))
            )
        print(printable(line), flush=True)  # noqa: T201 - the command's answer


def _word(value: object) -> str:
    """Returns a value of a line; texts with other characters than those of words are quoted as in JSON."""
    match value:
        case bool():
            text = str(value).lower()
        case float():
            text = f"{value:.6g}"
        case _:
            text = str(value)
    plain_text = text and not set(text) & set(" \"'=\\") and text.isprintable()
    return text if plain_text else json.dumps(text, ensure_ascii=False)


def _now() -> str:
    seconds, rest = divmod(time.time_ns(), 10**9)
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(seconds))}.{rest // 10**6:03}Z"


def _watched_facts(known: v1.WatchJobResponse) -> Mapping[str, object]:
    job, details = known.job, known.details
    return {**_job_facts(job, job_state(job, details)), "advice": details.advice or None}


def _listed_facts(row: v1.JobListing) -> Mapping[str, object]:
    summary = row.summary
    cost = summary.savings.cost
    return {
        **_job_facts(row.job, listed_state(row)),
        "running": summary.num_running_trials,
        "deliveries": summary.num_deliveries,
        "spent_joules": summary.spent.cost,
        "saved_at_least_joules": cost.at_least if cost.at_least > 0 else None,
        "since_trial": summary.savings.compared_from_trial or None,
        "attention": "yes" if summary.needs_attention else None,
    }


def _job_facts(job: v1.Job, state: str) -> Mapping[str, object]:
    return {
        "job": job.spec.job_id,
        "state": state,
        "batch_size": batch_size_in_use(job),
        "trials": job.num_trials,
        "expected_cost_joules": optional(job, "best_known_cost"),
        "estimate": _estimate(job.monitor, *job.other_monitors),
        "warning": _newest_warning(job) or None,
    }


def _used_now(job: v1.Job) -> str:
    """Returns the batch size in use and, if it is known, what a model is expected to cost with it."""
    if not (size := batch_size_in_use(job)):
        return "no batch size"
    if size != job.best_known_batch_size or not math.isfinite(job.best_known_cost):
        return f"batch size {size}"
    return f"batch size {size}, {marked(joules, mark_of(job))(job.best_known_cost)} per model expected"


def _cut(text: str, width: int) -> str:
    """Returns a text for one line of the terminal."""
    text = printable(text.rstrip())
    return text if len(text) <= width else f"{text[: width - 1]}…"


def _newest_warning(job: v1.Job) -> str:
    """Returns what was found last about a job, in a sentence; empty if nothing looks wrong."""
    return job.warnings[-1].message if job.warnings else ""


def _estimate(*sources: v1.Monitor) -> str | None:
    """Returns whether joules of these sources are estimates: "yes", "partly", or None."""
    return {EnergyQuality.ESTIMATED: "yes", EnergyQuality.PARTLY_ESTIMATED: "partly"}.get(quality_of(*sources))


_LINE_FIELDS = (
    "job",
    "trial",
    "batch_size",
    "status",
    "end_reason",
    "target_reached",
    "epoch",
    "metric",
    "target_metric",
    "time_seconds",
    "energy_joules",
    "cost_joules",
    "cost_bound_joules",
    "host",
)
"""The fields of an export that a line about a trial has."""


def _trial_facts(trial: v1.Trial, spec: v1.JobSpec) -> Mapping[str, object]:
    row = JobTrial(v1.Job(spec=spec), trial)
    fields = {name: FIELDS[name](row) for name in _LINE_FIELDS}
    return {**fields, "estimate": _estimate(trial.monitor)}


class _TrialTable:
    """A job and its newest trials, running ones first."""

    def __init__(self, known: v1.GetJobResponse, trials: Iterable[v1.Trial]) -> None:
        self._job, self._details = known.job, known.details
        self._choices: Sequence[v1.PreviewedChoice] = ()
        self._trials: dict[int, v1.Trial] = {trial.id.trial_number: trial for trial in trials}

    def take(self, change: _News) -> None:
        """Takes a change."""
        if isinstance(change, v1.WatchJobResponse):
            self._job, self._details = change.job, change.details
        elif isinstance(change, v1.PreviewNextResponse):
            self._choices = change.choices
        elif isinstance(change, v1.Trial):
            self._trials[change.id.trial_number] = change
            self._trials = {trial.id.trial_number: trial for trial in self._newest()[:_KEPT_ROWS]}

    def _newest(self) -> list[v1.Trial]:
        running = v1.TRIAL_STATUS_RUNNING
        return sorted(self._trials.values(), key=lambda each: (each.status != running, -each.id.trial_number))

    def draw(self, width: int, height: int) -> Iterator[RenderableType]:
        """Yields the table with at most so many rows, and what is above and below it."""
        job, spec = self._job, self._job.spec
        target, trials = f"metric {direction(spec)} {spec.target.value:g}", number_of(job.num_trials, "trial")
        yield f"{printable(spec.job_id)}: {job_state(job, self._details)}, {trials}, target: {target}"
        yield _cut(f"used now: {_used_now(job)}. {upcoming(job, self._choices)}", width)
        if warning := _newest_warning(job):
            height = max(1, height - 1)
            yield _cut(f"warning: {warning}", width)
        rows = [JobTrial(job, trial) for trial in self._newest()]
        yield from _table_of(_TRIAL_TABLE, rows, width, height, _TRIAL_MARKS) if rows else ("no trials",)


class _JobTable:
    """The jobs that run, then those that changed last."""

    def __init__(self) -> None:
        self._rows: dict[str, v1.JobListing] = {}

    def take(self, change: _News) -> None:
        """Takes a change."""
        if isinstance(change, Deleted):
            self._rows.pop(change.job_id, None)
        elif isinstance(change, v1.JobListing):
            self._rows[change.job.spec.job_id] = change
            self._rows = {row.job.spec.job_id: row for row in self._by_activity()[:_KEPT_ROWS]}

    def _by_activity(self) -> list[v1.JobListing]:
        return sorted(
            self._rows.values(),
            key=lambda row: (
                not row.summary.num_running_trials,
                -row.summary.last_activity_time.ToNanoseconds(),
                row.job.spec.job_id,
            ),
        )

    def draw(self, width: int, height: int) -> Iterator[RenderableType]:
        """Yields the table with at most so many rows, and what is above and below it."""
        rows = self._by_activity()
        running = sum(bool(row.summary.num_running_trials) for row in rows)
        yield f"{running or 'no'} {'job has' if running == 1 else 'jobs have'} running trials"
        yield from _table_of(_JOB_TABLE, rows, width, height, (JOB_ESTIMATES,)) if rows else ()


def _table_of(
    columns: Sequence[Column[Row]], rows: Sequence[Row], width: int, height: int, marks: Sequence[Mark[Row]]
) -> Iterator[RenderableType]:
    """Yields a table with at most so many rows and notes, then its notes."""
    table = fit(columns, rows[:height], marks=marks, width=width, breaks=True)
    if table.notes:
        table = fit(columns, rows[: max(1, height - len(table.notes))], marks=marks, width=width, breaks=True)
    yield from (table.rich(), *table.notes)


def _of(
    values: Callable[[JobTrial], tuple[float | None, float | None]], text: Callable[[float], str]
) -> Callable[[JobTrial], str]:
    """Returns what writes two values, such as "12.0 kJ / 30.0 kJ", as far as they are known."""

    def both(row: JobTrial) -> str:
        first, second = values(row)
        parts = ["-" if first is None else text(first)] + ([] if second is None else [text(second)])
        return "" if first is None and second is None else " / ".join(parts)

    return both


_BY_NAME = {column.name: column for column in TRIAL_COLUMNS}
_TRIAL_TABLE: Sequence[Column[JobTrial]] = (
    _BY_NAME["trial"],
    _BY_NAME["batch size"],
    _BY_NAME["result"],
    _BY_NAME["epochs"],
    Column(
        "metric / target",
        _of(lambda row: (optional(row.trial.newest, "metric"), row.job.spec.target.value), metric),
        right=True,
        priority=2,
    ),
    Column(
        COST_AND_BOUND,
        _of(lambda row: (optional(row.trial, "cost"), optional(row.trial, "cost_bound")), joules),
        right=True,
        priority=3,
    ),
    _BY_NAME["age"],
    ages("reported", lambda row: optional(row.trial.newest, "report_time"), priority=7),
    Column("host", lambda row: row.trial.labels.get("host", ""), priority=8),
)
_TRIAL_MARKS = (USAGE_ESTIMATES, COMPUTED_COSTS)
_JOB_TABLE = [
    column
    for column in JOB_SAVINGS_COLUMNS
    if column.name
    in (
        *("job", "state", "used now", "running", "deliveries", "saved at least", "last activity", "attention"),
        "since trial",
    )
]


class _Screen:
    """A table that is drawn again, with its ages, on a terminal."""

    def __init__(self, console: Console, table: _Table) -> None:
        self._console = console
        self._table = table
        self._status = ""
        # The display draws in a thread of its own.
        self._lock = threading.Lock()

    def __call__(self, change: Change) -> None:
        with self._lock:
            match change:
                case Away(error):
                    self._status = f"waiting for the server: {error}"
                    return
                case Deleted(job_id) if isinstance(self._table, _TrialTable):
                    self._status = f"{job_id} was deleted"
                case _:
                    self._status = ""
            self._table.take(change)

    def _draw(self) -> RenderableType:
        """Returns what the terminal shows now."""
        from rich.console import Group  # noqa: PLC0415 - not installed with the bare package
        from rich.text import Text  # noqa: PLC0415 - likewise

        width, height = self._console.size
        with self._lock:
            # Below and above the rows: the state, the heading, the status, and the line of the cursor.
            parts = [
                *self._table.draw(width, max(1, height - 7)),
                *([printable(self._status)] if self._status else ()),
            ]
        # Job ids come from users: "[red]" in one is text.
        return Group(*(Text(part) if isinstance(part, str) else part for part in parts))

    @contextmanager
    def display(self) -> Iterator[Show]:
        """Shows the table within the block, and leaves its last state on the terminal."""
        from rich.live import Live  # noqa: PLC0415 - not installed with the bare package

        with Live(
            console=self._console, get_renderable=self._draw, refresh_per_second=_REFRESHES_PER_SECOND, screen=False
        ):
            yield self


def _display(console: Console | None, lines: _Lines, table: Callable[[], _Table]) -> AbstractContextManager[Show]:
    """Returns what shows changes: a table on a terminal, else lines."""
    return nullcontext(lines) if console is None else _Screen(console, table()).display()


def _newest_trials(client: Client, job_id: str) -> Iterator[v1.Trial]:
    return islice(client.trials(job_id, newest_first=True, page_size=_FIRST_TRIALS), _FIRST_TRIALS)
