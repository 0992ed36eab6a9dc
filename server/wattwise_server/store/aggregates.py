"""The SQL of figures: sums over the trials of jobs. Only trials that count are in them, unless a name says otherwise.

A trial is *own* unless it was imported and, as far as known, started before its job was registered: then it tells what
a batch size costs, but was not spent under this job. It is *doubtful* if it reached the target too cheaply to count:
what it cost is spent, and it is no delivery. Only the buckets, which show trials, have it as one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from wattwise.rules import EndReason, cost

from wattwise_server.domain import Moments, TrialOrigin, Usage
from wattwise_server.store.base import Bucket, Day, DeliveryLogs, JobVersion, TrialGroup
from wattwise_server.store.columns import Row, from_micros
from wattwise_server.store.rows import FAILED, NEWEST_EPOCH

_OWN = "(t.origin != 'IMPORTED' OR (t.start_known AND t.start_time >= j.create_time))"
_DOUBTFUL = "(t.target_reached AND t.observation IS NULL)"
_DELIVERED = "(t.target_reached AND t.observation IS NOT NULL)"
_TRIALS = "FROM trials t JOIN jobs j ON j.job_key = t.job_key"
_HAS_ENDED = "t.status != 'RUNNING' AND t.trial_number > j.reset_after"
_ENDED = f"{_TRIALS} WHERE {{jobs}} {_HAS_ENDED} AND NOT t.excluded"
# PostgreSQL would take the type of such a parameter from the integer that it is multiplied with.
_REAL = "CAST(${} AS double precision)"
_QUANTITIES = ("cost", "joules", "seconds", "money")
_LOGS = ", ".join(
    f"sum(CASE WHEN delivered AND {name} > 0 THEN 1 ELSE 0 END) AS {name}_count, "
    f"sum(CASE WHEN delivered AND {name} > 0 THEN ln({name}) ELSE 0 END) AS {name}_log, "
    f"sum(CASE WHEN delivered AND {name} > 0 THEN ln({name}) * ln({name}) ELSE 0 END) AS {name}_square"
    for name in _QUANTITIES
)
GROUPS = f"""
    WITH ended AS (
        SELECT t.job_key, t.batch_size, t.origin, {_OWN} AS own, {_DELIVERED} AS delivered,
               {_DOUBTFUL} AS doubtful, {{later}} AS later,
               t.trial_number, t.status, t.last_epoch, t.end_time, t.last_energy_joules IS NULL AS unmeasured,
               coalesce(t.cost, 0.0) AS cost, t.last_energy_joules AS joules,
               coalesce(t.last_time_seconds, 0.0) AS seconds,
               {_REAL.format(1)} * coalesce(t.last_energy_joules, 0.0)
                   + {_REAL.format(2)} * j.gpu_count * coalesce(t.last_time_seconds, 0.0) AS money
        {_ENDED}
    )
    SELECT job_key, batch_size, origin, own, delivered, doubtful, min(trial_number) AS first_trial,
           count(*) AS num_trials,
           sum(CASE WHEN {FAILED} THEN 1 ELSE 0 END) AS num_undecided,
           sum(CASE WHEN status = 'INTERRUPTED' THEN 1 ELSE 0 END) AS num_interrupted,
           sum(cost) AS cost, sum(joules) AS joules, sum(seconds) AS seconds, sum(money) AS money,
           sum(CASE WHEN unmeasured AND cost = 0 THEN 1 ELSE 0 END) AS num_without_cost,
           sum(CASE WHEN unmeasured THEN 1 ELSE 0 END) AS num_without_energy,
           sum(last_epoch) AS epochs, min(last_epoch) AS least_epochs, max(last_epoch) AS most_epochs,
           max(end_time) AS newest, {_LOGS}
    FROM ended GROUP BY job_key, batch_size, origin, own, delivered, doubtful, later
"""  # noqa: S608 - names of this module
"""The sums by job, batch size, origin, and whether trials are own, delivered, doubtful and later than the job's split.
{{jobs}} limits the jobs; $1 and $2 are the prices of a joule and of a second of one GPU."""

RUNNING = f"""
    SELECT t.job_key, t.batch_size, t.origin, t.trial_number, coalesce(m.time_seconds, 0.0) AS seconds,
           m.energy_joules AS joules, j.eta_knob, j.gpu_count * j.max_power_watts_per_gpu AS max_power_watts,
           coalesce(m.computed_time_seconds, m.time_seconds, 0.0) AS counted_seconds,
           CASE WHEN m.computed_time_seconds IS NULL THEN m.energy_joules ELSE m.computed_energy_joules END
               AS counted_joules
    {_TRIALS}
    LEFT JOIN measurements m ON m.job_key = t.job_key AND m.trial_number = t.trial_number AND m.epoch = {NEWEST_EPOCH}
    WHERE {{jobs}} t.status = 'RUNNING' AND t.trial_number > j.reset_after AND NOT t.excluded
"""
"""What each running trial has used up to its newest report."""

_COUNTED = f"""
    SELECT t.trial_number, t.cost, {_OWN} AS own, {_DELIVERED} AS delivered, (t.trial_number - $2) / $3 AS bucket
    {_ENDED.format(jobs="t.job_key = $1 AND")}
"""
_BUCKETS = f"""
    WITH reported AS (
        SELECT t.trial_number, t.batch_size, t.cost, t.status, t.target_reached, t.end_time, t.last_epoch,
               t.end_reason, t.excluded, {{reason}} AS reason, (t.trial_number - $2) / $3 AS bucket
        {_TRIALS} {{launches}}
        WHERE t.job_key = $1 AND {_HAS_ENDED} AND {{counted}} AND t.cost IS NOT NULL
    ),
    ranked AS (
        SELECT *, row_number() OVER (PARTITION BY bucket, batch_size, excluded ORDER BY cost) AS nth,
               count(*) OVER (PARTITION BY bucket, batch_size, excluded) AS total FROM reported
    )
    SELECT bucket AS place, batch_size, count(*) AS num_trials,
           sum(CASE WHEN target_reached THEN 1 ELSE 0 END) AS num_deliveries,
           sum(CASE WHEN {FAILED} THEN 1 ELSE 0 END) AS num_undecided,
           min(cost) AS least_cost,
           avg(CASE WHEN nth IN ((total + 1) / 2, (total + 2) / 2) THEN cost END) AS median_cost,
           max(cost) AS most_cost, max(trial_number) AS newest_trial, max(end_time) AS last_end_time,
           avg(CAST(last_epoch AS double precision)) AS mean_epochs,
           CASE WHEN min(end_reason) = max(end_reason) THEN min(end_reason) END AS end_reason,
           max(reason) AS reason, excluded
    FROM ranked GROUP BY bucket, batch_size, excluded ORDER BY bucket, batch_size, excluded
"""  # noqa: S608 - as above

POINTS = f"""
    SELECT bucket AS place, sum(CASE WHEN own AND delivered THEN 1 ELSE 0 END) AS num_deliveries,
           sum(CASE WHEN own THEN coalesce(cost, 0.0) ELSE 0.0 END) AS cost,
           sum(CASE WHEN own AND delivered AND trial_number >= $4 THEN 1 ELSE 0 END) AS num_compared,
           sum(CASE WHEN own AND trial_number >= $4 THEN coalesce(cost, 0.0) ELSE 0.0 END) AS compared_cost
    FROM ({_COUNTED}) AS counted GROUP BY bucket ORDER BY bucket
"""  # noqa: S608 - as above
"""Deliveries and cost of the same ranges, and of the trials from $4 on in them."""

BREAK_EVEN = f"""
    WITH counted AS (SELECT * FROM ({_COUNTED}) AS every WHERE trial_number >= $5),
    summed AS (
        SELECT trial_number,
               sum(CASE WHEN own AND delivered THEN 1 ELSE 0 END) OVER sofar * {_REAL.format(4)}
               - sum(CASE WHEN own THEN coalesce(cost, 0.0) ELSE 0.0 END) OVER sofar AS saved
        FROM counted WINDOW sofar AS (ORDER BY trial_number)
    )
    SELECT min(trial_number) AS found FROM summed
    WHERE trial_number > (SELECT coalesce(max(trial_number), 0) FROM summed WHERE saved <= 0)
"""  # noqa: S608 - as above
"""The trial from which the deliveries times $4 have exceeded what was spent, both by the trials from $5 on."""

DELIVERIES_SINCE = f"""
    SELECT count(*) AS found FROM jobs j JOIN trials t ON t.job_key = j.job_key
    WHERE j.job_key = $1 AND t.end_time > $2 AND {_DELIVERED}
      AND +t.trial_number > j.reset_after AND NOT t.excluded
      AND +t.trial_number >= $3 AND {_OWN}
"""  # noqa: S608 - as above
"""How many own trials of the job $1 from the number $3 on have delivered a model after $2. The signs keep SQLite from
the primary key, which reads every trial since the reset."""

_MICROS_OF_A_DAY = 86_400_000_000
# The sign keeps SQLite from the primary key, which reads every trial since the reset.
_DAYS_ENDED = _ENDED.format(jobs="t.job_key = $1 AND").replace("t.trial_number >", "+t.trial_number >")
DAYS = f"""
    SELECT t.end_time / {_MICROS_OF_A_DAY} AS day, count(*) AS num_trials,
           sum(CASE WHEN {_DELIVERED} THEN 1 ELSE 0 END) AS num_deliveries,
           sum(coalesce(t.cost, 0.0)) AS cost, sum(t.last_energy_joules) AS joules,
           sum(coalesce(t.last_time_seconds, 0.0)) AS seconds
    {_DAYS_ENDED} AND t.end_time >= $2 AND {_OWN}
    GROUP BY t.end_time / {_MICROS_OF_A_DAY} ORDER BY day
"""
"""Sums over the own trials of the job $1 that ended since $2, by day in UTC."""

PROFILES = """
    SELECT t.trial_number, t.batch_size, s.samples FROM jobs j
    CROSS JOIN power_samples s
    CROSS JOIN trials t
    WHERE j.job_key = $1 AND s.job_key = j.job_key
      AND t.job_key = s.job_key AND t.trial_number = s.trial_number AND NOT t.excluded
      AND t.trial_number = (
        SELECT max(o.trial_number) FROM power_samples o
        JOIN trials u ON u.job_key = o.job_key AND u.trial_number = o.trial_number
        WHERE o.job_key = $1 AND u.batch_size = t.batch_size AND NOT u.excluded)
    ORDER BY t.batch_size
"""
"""The newest profile of each batch size of the job $1, also from before a reset, which keeps the limits. SQLite reads
the tables of a CROSS JOIN in their order: few trials have a profile."""

_ROUNDING = 1e-12
"""What is left of equal values when their sum of squares is computed, relative to it."""


def buckets(*, single: bool, with_excluded: bool) -> str:
    """Selects the ended trials of the job $1 that have reported, in ranges of $3 numbers from $2 on.

    Args:
        single: Whether each range is a single number; then the trials have the reasons of their batch sizes.
        with_excluded: Whether excluded trials are among them, apart from the others.
    """
    launches = "LEFT JOIN launches l ON l.job_key = t.job_key AND l.trial_number = t.trial_number" if single else ""
    return _BUCKETS.format(
        reason="coalesce(l.reason, '')" if single else "''",
        launches=launches,
        counted="TRUE" if with_excluded else "NOT t.excluded",
    )


def read_bucket(row: Row) -> Bucket:
    """Reads a row of `buckets`."""
    values = {name: row[name] for name in Bucket._fields}
    reason = row["end_reason"]
    return Bucket(
        **values
        | {
            "last_end_time": from_micros(row["last_end_time"]),
            "end_reason": EndReason(reason) if reason else None,
            "excluded": bool(row["excluded"]),
        }
    )


def of_jobs(keys: Sequence[int] | None, *, sign: str = "") -> str:
    """Returns the condition that a trial is of one of these jobs; None: any. A sign keeps SQLite from its index."""
    return "" if keys is None else f"{sign}t.job_key IN ({', '.join(map(str, keys)) or '-1'}) AND"


def later(splits: Mapping[int, int]) -> str:
    """Returns whether a trial is not from before the number of its job in `splits`; always the same for other jobs."""
    if not splits:
        return "TRUE"
    numbers = " ".join(f"WHEN {key} THEN {number}" for key, number in splits.items())
    return f"t.trial_number >= CASE t.job_key {numbers} ELSE 0 END"


def read_version(row: Row) -> JobVersion:
    """Reads a row of `lists.versions`."""
    values = {name: row[name] for name in JobVersion._fields}
    lists = ("excluded", "available", "failing")
    return JobVersion(**values | {name: tuple(sorted(json.loads(row[name] or "[]"))) for name in lists})


def read_group(row: Row) -> TrialGroup:
    """Reads a row of GROUPS."""
    return TrialGroup(
        batch_size=row["batch_size"],
        origin=TrialOrigin(row["origin"]),
        own=bool(row["own"]),
        delivered=bool(row["delivered"]),
        doubtful=bool(row["doubtful"]),
        first_trial=row["first_trial"],
        num_trials=row["num_trials"],
        num_undecided=row["num_undecided"],
        num_interrupted=row["num_interrupted"],
        usage=Usage(row["seconds"], row["joules"], row["cost"]),
        money=row["money"],
        num_without_cost=row["num_without_cost"],
        num_without_energy=row["num_without_energy"],
        # PostgreSQL returns the sum of integers as a Decimal.
        epochs=int(row["epochs"] or 0),
        least_epochs=row["least_epochs"] or 0,
        most_epochs=row["most_epochs"] or 0,
        newest_end=None if row["newest"] is None else from_micros(row["newest"]),
        logs=DeliveryLogs(*(_moments(row, name) for name in _QUANTITIES)),
    )


def read_day(row: Row) -> Day:
    """Reads a row of DAYS."""
    usage = Usage(row["seconds"], row["joules"], row["cost"])
    return Day(from_micros(row["day"] * _MICROS_OF_A_DAY), row["num_trials"], row["num_deliveries"], usage)


def _moments(row: Row, name: str) -> Moments:
    count, total, squares = row[f"{name}_count"], row[f"{name}_log"], row[f"{name}_square"]
    if not count:
        return Moments()
    deviation = squares - total * total / count
    return Moments(count, total / count, deviation if deviation > _ROUNDING * squares else 0.0)


def read_running(row: Row) -> TrialGroup:
    """Reads a row of RUNNING."""
    price = cost(row["eta_knob"], row["max_power_watts"], row["counted_joules"] or 0.0, row["counted_seconds"])
    usage = Usage(row["seconds"], row["joules"], price)
    return TrialGroup(
        row["batch_size"],
        TrialOrigin(row["origin"]),
        running=True,
        first_trial=row["trial_number"],
        num_trials=1,
        usage=usage,
    )
