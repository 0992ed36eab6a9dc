"""The SQL of lists: which jobs, trials and events, in which order, and where a page begins."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from wattwise.rules import TrialStatus

from wattwise_server.domain import FAILURES_TO_SET_ASIDE
from wattwise_server.store.base import EventList, JobList, JobOrder, JobPlace, JobState, Place, TrialList
from wattwise_server.store.rows import FAILED, NEWEST_EPOCH


class Dialect(NamedTuple):
    """What the databases spell differently.

    Attributes:
        json_array: The aggregate function that makes a JSON array.
        greatest: A text that is greater than any continuation of an id.
        largest: The function that returns the largest of its arguments.
        contains: The place of a text in an id, whatever the case of ASCII letters; 0 if it is not there.
        has_label: Whether a JSON array of pairs of key and value has a pair.
    """

    json_array: str
    greatest: str
    largest: str
    contains: str
    has_label: str


class Query(NamedTuple):
    """A query with its parameters."""

    sql: str
    parameters: Sequence[object]


class _Conditions:
    """Conditions and their parameters, which are numbered as they come."""

    def __init__(self) -> None:
        self.parameters: list[object] = []
        self._found: list[str] = []

    def parameter(self, value: object) -> str:
        """Adds a parameter; returns its name."""
        self.parameters.append(value)
        return f"${len(self.parameters)}"

    def add(self, condition: str, *values: object) -> None:
        """Adds a condition with {} for each value."""
        self._found.append(condition.format(*map(self.parameter, values)))

    def add_prefix(self, prefix: str, dialect: Dialect) -> None:
        """Adds that a job's id starts with a prefix, by the index of ids."""
        if prefix:
            name = self.parameter(prefix)
            self._found.append(f"j.job_id >= {name} AND j.job_id < {name} || {dialect.greatest}")

    def add_any(self, column: str, values: Sequence[object]) -> None:
        """Adds that a column has one of these values, if there are any."""
        if values:
            self._found.append(f"{column} IN ({', '.join(map(self.parameter, values))})")

    def __str__(self) -> str:
        return " AND ".join(self._found) or "TRUE"


# A range of one key: with an equation, SQLite would search by the primary key, which reads every trial of the job.
_OF_JOB = "t.job_key BETWEEN j.job_key AND j.job_key"
_RUNNING_TRIALS = f"FROM trials t WHERE {_OF_JOB} AND t.status = 'RUNNING'"
_RUNNING = f"EXISTS (SELECT 1 {_RUNNING_TRIALS})"
_NUM_RUNNING = f"(SELECT count(*) {_RUNNING_TRIALS})"
_SEVERAL_FAILURES = f"%{'%'.join(',' * (FAILURES_TO_SET_ASIDE - 1))}%"
"""A pattern: the trials of a batch size that failed in a row, a JSON array of numbers, are so many or more."""
_NEWEST_ENDS = f"""
    SELECT count(*) FROM (
        SELECT t.status, t.end_reason FROM trials t
        WHERE t.job_key = j.job_key AND t.end_time IS NOT NULL AND {{counted}} AND NOT t.excluded
        ORDER BY {{end_time}} DESC LIMIT {FAILURES_TO_SET_ASIDE}
    ) AS newest WHERE {FAILED} AND end_reason != 'PREEMPTED'"""  # noqa: S608 - a number
_FEW_TRIALS = 100
_ARMS = "EXISTS (SELECT 1 FROM arms a WHERE a.job_key = j.job_key AND {})"
_IS_AVAILABLE = "NOT (a.pruned OR a.excluded OR a.banned)"
# Without a decided trial, a batch size has failed that often in a row: it is set aside.
_MAY_REACH = f"{_IS_AVAILABLE} AND a.num_decided = 0 AND a.num_failed < {FAILURES_TO_SET_ASIDE}"
# The newest ends are found in their order; the sign keeps SQLite from the primary key. Soon after a reset, that order
# begins with all trials from before it: the few since then are found by number, and the sum keeps both databases from
# the order.
_ATTENTION = f"""(
    NOT {_ARMS.format(_IS_AVAILABLE)}
    OR NOT {_ARMS.format(f"(a.num_converged > 0 OR {_MAY_REACH})")}
    OR j.warnings != '[]'
    OR {FAILURES_TO_SET_ASIDE} = CASE WHEN j.reset_after > 0 AND j.num_trials < j.reset_after + {_FEW_TRIALS}
        THEN ({_NEWEST_ENDS.format(counted="t.trial_number > j.reset_after", end_time="t.end_time + 0")})
        ELSE ({_NEWEST_ENDS.format(counted="+t.trial_number > j.reset_after", end_time="t.end_time")}) END)"""
# A trial that has ended did so after its start.
_ACTIVE_TIME = f"""{{largest}}(
    coalesce((SELECT max(t.end_time) FROM trials t WHERE t.job_key = j.job_key), 0),
    coalesce((SELECT max(t.start_time) {_RUNNING_TRIALS}), 0),
    coalesce((
        SELECT max(m.report_time) FROM trials t
        JOIN measurements m ON m.job_key = t.job_key AND m.trial_number = t.trial_number
        WHERE {_OF_JOB} AND t.status = 'RUNNING' AND m.epoch = {NEWEST_EPOCH}
    ), 0))"""  # noqa: S608 - as above

_STATES = {
    JobState.RUNNING: _RUNNING,
    JobState.IDLE: f"j.num_trials > 0 AND NOT {_RUNNING}",
    JobState.NEW: "j.num_trials = 0",
    JobState.HELD: "(j.paused OR j.pinned IS NOT NULL)",
    JobState.ATTENTION: _ATTENTION,
}
_ORDERS = {
    JobOrder.OLDEST: "job_key",
    JobOrder.NEWEST: "job_key DESC",
    JobOrder.LAST_ACTIVITY: "active_time DESC, job_key DESC",
    JobOrder.ATTENTION: "attention DESC, active_time DESC, job_key DESC",
    JobOrder.ID: "job_id",
}
_BY_ACTIVITY = frozenset({JobOrder.LAST_ACTIVITY, JobOrder.ATTENTION})
_POLICY = "coalesce(changed_policy, policy) AS policy"
_POLICY_VERSION = "coalesce(changed_policy || changed_parameters, policy) AS policy"
PLACES = {JobOrder.OLDEST: "job_key", JobOrder.NEWEST: "job_key", JobOrder.ID: "job_id"}
"""The columns by which a page begins behind a job; in the other orders it begins behind a number of jobs."""

_BATCH_SIZES = "SELECT {json_array}(batch_size) FROM arms a WHERE a.job_key = j.job_key"
_AVAILABLE = f"{_BATCH_SIZES} AND {_IS_AVAILABLE}"
_FAILING = f"{_BATCH_SIZES} AND a.failed_trials LIKE '{_SEVERAL_FAILURES}'"

# The arrays only of the jobs of the page.
_JOBS = """
    WITH page AS (
        SELECT j.job_key, j.job_id, {num_running} AS num_running, {active_time} AS active_time, {attention} AS attention
        FROM jobs j WHERE {conditions} ORDER BY {order} LIMIT {limit}
    )
    SELECT j.*, page.num_running, page.active_time, page.attention,
           ({batch_sizes}) AS batch_sizes, ({available}) AS available, ({failing}) AS failing
    FROM page JOIN jobs j ON j.job_key = page.job_key ORDER BY {page_order}
"""


def jobs(wanted: JobList, after: JobPlace, limit: int, dialect: Dialect) -> Query:
    """Selects a page of jobs."""
    conditions = _jobs(wanted, dialect)
    column = PLACES.get(wanted.order)
    if column and after:
        conditions.add(f"j.{column} {'<' if wanted.order is JobOrder.NEWEST else '>'} {{}}", after)
    active = wanted.with_activity or wanted.order in _BY_ACTIVITY
    attentive = wanted.with_activity or wanted.order is JobOrder.ATTENTION
    where = str(conditions)
    limited = conditions.parameter(limit)
    if column is None:
        limited += f" OFFSET {conditions.parameter(after)}"
    order = _ORDERS[wanted.order]
    sql = _JOBS.format(
        num_running=_NUM_RUNNING if wanted.with_activity else "NULL",
        active_time=_ACTIVE_TIME.format(largest=dialect.largest) if active else "NULL",
        attention=_ATTENTION if attentive else "NULL",
        conditions=where,
        order=order,
        page_order=", ".join(f"page.{column}" for column in order.split(", ")),
        limit=limited,
        batch_sizes=_BATCH_SIZES.format(json_array=dialect.json_array),
        available=_AVAILABLE.format(json_array=dialect.json_array),
        failing=_FAILING.format(json_array=dialect.json_array),
    )
    return Query(sql, conditions.parameters)


def count_jobs(wanted: JobList, dialect: Dialect) -> Query:
    """Counts how many jobs a list has."""
    conditions = _jobs(wanted, dialect)
    return Query(f"SELECT count(*) AS found FROM jobs j WHERE {conditions}", conditions.parameters)  # noqa: S608


def versions(prefix: str, job_id: str | None, keys: Sequence[int] | None, dialect: Dialect) -> Query:
    """Selects what tells of each job, of one, or of some, whether its statistics are out of date."""
    conditions = _jobs(JobList(prefix), dialect)
    if job_id is not None:
        conditions.add("j.job_id = {}", job_id)
    if keys is not None:
        conditions.add(f"j.job_key IN ({', '.join(map(str, keys)) or '-1'})")
    excluded = f"SELECT {dialect.json_array}(trial_number) FROM trials t WHERE {_OF_JOB} AND t.excluded"  # noqa: S608
    columns = f"job_key AS key, num_search_events, reset_after, {_POLICY_VERSION}, default_batch_size, paused, pinned"
    columns += ", best_known, gpu_count AS num_gpus"
    for name, arms in (("available", _AVAILABLE), ("failing", _FAILING)):
        # Other jobs use a batch size whatever its arms are.
        listed = arms.format(json_array=dialect.json_array)
        columns += f", CASE WHEN coalesce(pinned, best_known) IS NULL THEN ({listed}) END AS {name}"
    sql = f"SELECT {columns}, ({excluded}) AS excluded, {_ATTENTION} AS needs_attention FROM jobs j WHERE {conditions}"  # noqa: S608 - names of ours
    return Query(sql, conditions.parameters)


def policy_states(keys: Sequence[int]) -> str:
    """Selects the policies of some jobs, and the notes of their searches."""
    return f"SELECT job_key, {_POLICY}, notes FROM jobs WHERE job_key IN ({', '.join(map(str, keys)) or '-1'})"  # noqa: S608 - numbers


def _jobs(wanted: JobList, dialect: Dialect) -> _Conditions:
    conditions = _Conditions()
    conditions.add_prefix(wanted.prefix, dialect)
    if wanted.contains:
        conditions.add(f"{dialect.contains} > 0", wanted.contains)
    if wanted.states:
        conditions.add(f"({' OR '.join(f'({_STATES[state]})' for state in wanted.states)})")
    return conditions


_NEXT_TRIAL = {
    # One job's by number; those of several jobs by start.
    True: {False: "t.trial_number > {}", True: "t.trial_number < {}"},
    False: {
        False: "(t.start_time, t.job_key, t.trial_number) > ({}, {}, {})",
        True: "(t.start_time, t.job_key, t.trial_number) < ({}, {}, {})",
    },
}


def is_quick(wanted: TrialList) -> bool:
    """Returns whether an index leads to each trial of a page; others may be found only among all trials of a job."""
    filtered = wanted.end_reasons or wanted.batch_size or wanted.labels
    return wanted.job_id is not None and not filtered and (not wanted.statuses or _only_running(wanted))


def _only_running(wanted: TrialList) -> bool:
    return wanted.statuses == (TrialStatus.RUNNING,)


_TRIAL_ORDER = {True: ("t.trial_number",), False: ("t.start_time", "t.job_key", "t.trial_number")}


def trials(wanted: TrialList, after: Place, limit: int, *, columns: str, tables: str, dialect: Dialect) -> Query:
    """Selects a page of trials.

    Args:
        wanted: Which ones.
        after: The place of the last trial of the page before; empty for the first page.
        limit: The largest number.
        columns: SELECT with the columns of a trial.
        tables: FROM with the tables that they are of.
        dialect: Of the database.
    """
    one_job = wanted.job_id is not None
    conditions = _trials(wanted, dialect)
    if after:
        conditions.add(_NEXT_TRIAL[one_job][wanted.newest_first], *after)
    direction = " DESC" if wanted.newest_first else ""
    # The sign keeps SQLite from walking all trials in order of their start to find the few that run.
    sign = "+" if _only_running(wanted) else ""
    order = ", ".join(f"{sign}{column}{direction}" for column in _TRIAL_ORDER[one_job])
    if not one_job:
        columns, tables = f"{columns}, j.job_id", f"{tables} JOIN jobs j ON j.job_key = t.job_key"
    sql = f"{columns} {tables} WHERE {conditions} ORDER BY {order}"
    return Query(f"{sql} LIMIT {conditions.parameter(limit)}", conditions.parameters)


def count_trials(wanted: TrialList, dialect: Dialect) -> Query:
    """Counts how many trials a list has."""
    conditions = _trials(wanted, dialect)
    tables = "trials t" if wanted.job_id is not None or not wanted.prefix else "jobs j JOIN trials t USING (job_key)"
    return Query(f"SELECT count(*) AS found FROM {tables} WHERE {conditions}", conditions.parameters)  # noqa: S608


def _trials(wanted: TrialList, dialect: Dialect) -> _Conditions:
    conditions = _Conditions()
    if wanted.job_id is not None:
        key = f"(SELECT job_key FROM jobs WHERE job_id = {conditions.parameter(wanted.job_id)})"  # noqa: S608 - a parameter's name
        # As _OF_JOB.
        conditions.add(f"t.job_key BETWEEN {key} AND {key}" if _only_running(wanted) else f"t.job_key = {key}")
    else:
        conditions.add_prefix(wanted.prefix, dialect)
    if wanted.statuses:
        # No parameters: so the index of running trials can serve.
        listed = ", ".join(f"'{status.value}'" for status in wanted.statuses)
        conditions.add(f"t.status = {listed}" if len(wanted.statuses) == 1 else f"t.status IN ({listed})")
    conditions.add_any("t.end_reason", [reason.value for reason in wanted.end_reasons])
    if wanted.batch_size is not None:
        conditions.add("t.batch_size = {}", wanted.batch_size)
    launch = "SELECT 1 FROM launches l WHERE l.job_key = t.job_key AND l.trial_number = t.trial_number"
    for pair in wanted.labels:
        conditions.add(f"EXISTS ({launch} AND {dialect.has_label})", *pair)
    return conditions


def events(wanted: EventList, after: Place, limit: int, dialect: Dialect) -> Query:
    """Selects a page of the history, newest first."""
    conditions = _Conditions()
    if wanted.job_id is not None:
        conditions.add("j.job_id = {}", wanted.job_id)
    conditions.add_prefix(wanted.prefix, dialect)
    conditions.add_any("j.kind", wanted.kinds)
    if after:
        conditions.add("j.entry < {}", *after)
    sql = f"SELECT * FROM events j WHERE {conditions} ORDER BY j.entry DESC LIMIT "  # noqa: S608
    return Query(sql + conditions.parameter(limit), conditions.parameters)
