"""Converts between rows and the domain: the only module that knows the columns."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, replace
from datetime import datetime, timedelta, timezone
from operator import itemgetter
from typing import Any

from wattwise_server.domain import (
    PARAMETERS,
    UNDECIDED,
    Activity,
    Arm,
    ComputedUsage,
    EndReason,
    EnergyQuality,
    EventKind,
    GpuGroup,
    HistoryEntry,
    HistoryKind,
    Job,
    JobEvent,
    JobSpec,
    Launch,
    ListedJob,
    Measurement,
    Moments,
    MonitorKinds,
    PowerLimitState,
    PowerSample,
    ProfileResult,
    PruningGtsRole,
    PruningGtsTrial,
    Search,
    Stage,
    Trial,
    TrialOrigin,
    TrialStatus,
    TrialWarning,
    WarningReason,
    undecided,
)
from wattwise_server.store.statements import Sql, Statement

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_MICROSECOND = timedelta(microseconds=1)

Row = Mapping[str, Any]
"""A row by column name."""

_NO_LAUNCH = Launch()
_NOTHING_COMPUTED = (None, None, None)


def to_micros(time: datetime) -> int:
    """Microseconds since 1970, exactly."""
    return (time - _EPOCH) // _MICROSECOND


def from_micros(micros: int) -> datetime:
    """The time of `to_micros`."""
    return _EPOCH + micros * _MICROSECOND


def _upsert(table: str, keys: Sequence[str], columns: Sequence[str]) -> str:  # pragma: no mutate block, runs at import
    everything = (*keys, *columns)
    values = ", ".join("?" * len(everything))
    changes = ", ".join(f"{column} = excluded.{column}" for column in columns)
    return (
        f"INSERT INTO {table} ({', '.join(everything)}) VALUES ({values}) "  # noqa: S608 - names of this module
        f"ON CONFLICT ({', '.join(keys)}) DO UPDATE SET {changes}"
    )


FAILED = f"status IN ({', '.join(sorted(repr(status.value) for status in UNDECIDED))})"
"""The condition that a trial ended without a decision."""

# Every field of JobSpec is a column of the same name, except those that are stored differently.
_SPEC = tuple(field.name for field in fields(JobSpec) if field.name not in ("batch_sizes", "gpu"))
_LISTS = frozenset({"prior_job_ids"})
_BOOLEANS = frozenset(field.name for field in fields(JobSpec) if field.name in _SPEC and field.type == "bool")
_GPU = ("gpu_model", "gpu_count", "max_power_watts_per_gpu")
_JOB_ONCE = (*_SPEC, *_GPU, "create_time", "set_fields")
_MONITOR = ("monitor_kinds", "monitor_quality")
_MONITORS = (*_MONITOR, "other_monitors")
_JOB_STATE = (
    "stage",
    "pruning_round",
    "round_default",
    "exploring",
    "min_cost",
    "min_cost_batch_size",
    "missed_floor",
    "bound_stops",
    "num_trials",
    "best_known",
    "best_known_cost",
    "notes",
    "num_observations",
    *_MONITORS,
    "num_events",
    "first_notes",
    "changed_policy",
    "changed_parameters",
    "reset_after",
    "reset_time",
    "paused",
    "pinned",
    "baseline_requested",
    "baseline_every",
    "requests",
    "warnings",
)
_SEARCH = (
    "pruning_round",
    "round_default",
    "exploring",
    "min_cost",
    "min_cost_batch_size",
    "missed_floor",
    "bound_stops",
    "num_trials",
    "best_known",
    "best_known_cost",
    "notes",
)
_MOMENTS = ("count", "mean", "deviation")
_SUMS = ("reached", "missed", "counted")
_READ_SUMS = tuple(itemgetter(*(f"{name}_{part}" for part in _MOMENTS)) for name in _SUMS)
_ARM = (
    "pruned",
    "excluded",
    "banned",
    "round_cost",
    "num_decided",
    "num_converged",
    "num_failed",
    "num_out_of_memory",
    "failed_cost",
    "failed_trials",
    "out_of_memory",
    "cheapest",
    *(f"{name}_{part}" for name in _SUMS for part in _MOMENTS),
)
_SAMPLE = ("limit_watts_per_gpu", "time_seconds", "energy_joules", "steps")
_HIGHEST = tuple(f"highest_{column}" for column in _SAMPLE)
_COMPUTED = ("computed_time_seconds", "computed_energy_joules", "computed_limit_watts_per_gpu")
_SELDOM = (*_COMPUTED, "limit_watts_per_gpu")
_LAST = (
    "last_epoch",
    "last_time_seconds",
    "last_energy_joules",
    "last_metric",
    "last_report_time",
    *(f"last_{column}" for column in _SELDOM),
)
_TRIAL = (
    "batch_size",
    "origin",
    "policy_role",
    "pruning_round",
    "status",
    "end_reason",
    "launch_id",
    "start_time",
    "start_known",
    "end_time",
    "cost",
    "cost_bound",
    "converged",
    "target_reached",
    "observation",
    "best_known",
    *_LAST,
    *_MONITORS,
    "excluded",
    "dispatch_event",
    "end_event",
    "warnings",
    "profile",
)
_EVENT = ("job_key", "event", "kind", "batch_size", "trial_number", "policy_role", "end_reason", "cost", *_LAST)
_MEASUREMENT = ("job_key", "trial_number", "epoch", "time_seconds", "energy_joules", "metric", "report_time")

_INSERT_JOB = Sql(
    f"INSERT INTO jobs (job_key, {', '.join((*_JOB_ONCE, *_JOB_STATE))}) "  # noqa: S608 - names of this module
    f"VALUES ({', '.join('?' * (1 + len(_JOB_ONCE) + len(_JOB_STATE)))})",
    rank=1,
    name="new_jobs",
    columns=("job_key", *_JOB_ONCE, *_JOB_STATE),
    keys=1,
)
_UPDATE_JOB = Sql(
    f"UPDATE jobs SET {', '.join(f'{column} = ?{place}' for place, column in enumerate(_JOB_STATE, 2))} "  # noqa: S608
    "WHERE job_key = ?1",
    rank=2,
    name="job_states",
    columns=("job_key", *_JOB_STATE),
    keys=1,
)


def _upserting(table: str, key: str, columns: Sequence[str], rank: int) -> Sql:  # pragma: no mutate block, as above
    keys = ("job_key", key)
    return Sql(_upsert(table, keys, columns), rank, name=table, columns=(*keys, *columns), keys=2)


_SAVE_ARM = _upserting("arms", "batch_size", _ARM, 3)
_SAVE_POWER_LIMIT = _upserting("power_limits", "batch_size", (*_SAMPLE, "profiling", *_HIGHEST), 4)
_SAVE_TRIAL = _upserting("trials", "trial_number", _TRIAL, 5)
_MEASUREMENT_ROW = f"({', '.join('?' * len(_MEASUREMENT))})"
_ADD_MEASUREMENT = Sql(
    f"INSERT INTO measurements ({', '.join(_MEASUREMENT)}) VALUES {_MEASUREMENT_ROW}",  # noqa: S608
    rank=6,
    row=_MEASUREMENT_ROW,
    name="measurements",
    columns=_MEASUREMENT,
)
_ADD_EVENT = Sql(
    f"INSERT INTO events ({', '.join(_EVENT)}) VALUES ({', '.join('?' * len(_EVENT))})",  # noqa: S608
    rank=8,
    name="events",
    columns=_EVENT,
)
# Apart, because few trials have computed sums or a known power limit, and every column takes time with every report.
_COMPUTED_ROW = f"({', '.join('?' * len((*_MEASUREMENT, *_SELDOM)))})"
_ADD_COMPUTED = Sql(
    f"INSERT INTO measurements ({', '.join((*_MEASUREMENT, *_SELDOM))}) VALUES {_COMPUTED_ROW}",  # noqa: S608
    rank=7,
    row=_COMPUTED_ROW,
    name="computed",
    columns=(*_MEASUREMENT, *_SELDOM),
)
_LAUNCH = ("job_key", "trial_number", "reason", "labels", "token_id")
_ADD_LAUNCH = Sql(
    f"INSERT INTO launches ({', '.join(_LAUNCH)}) VALUES ({', '.join('?' * len(_LAUNCH))})",  # noqa: S608
    rank=6,
    name="launches",
    columns=_LAUNCH,
)
_SAVE_SAMPLES = _upserting("power_samples", "trial_number", ("samples",), 6)
_HISTORY = ("job_id", "time", "kind", "trial_number", "batch_size", "message", "token_id")
_ADD_HISTORY = Sql(
    f"INSERT INTO history ({', '.join(_HISTORY)}) VALUES ({', '.join('?' * len(_HISTORY))})",  # noqa: S608
    rank=8,
    name="history",
    columns=_HISTORY,
)
_KEEP_MEASUREMENTS = Sql(
    """
    DELETE FROM measurements WHERE job_key = ?1 AND trial_number = ?2 AND epoch <= (
        SELECT epoch FROM measurements WHERE job_key = ?1 AND trial_number = ?2 ORDER BY epoch DESC LIMIT 1 OFFSET ?3)
    """,
    rank=9,
    name="kept",
    columns=("job_key", "trial_number", "newest"),
    keys=2,
)
_DELETE_JOB = Sql("DELETE FROM jobs WHERE job_key = ?")
# Imports are not remembered: history may be imported again.
_REMEMBER_LAUNCHES = Sql(
    """
    INSERT OR REPLACE INTO deletions SELECT job_id, '', create_time, ?2 FROM jobs WHERE job_key = ?3 UNION ALL
    SELECT ?1, launch_id, start_time, ?2 FROM trials WHERE job_key = ?3 AND origin != 'IMPORTED'
    """,
    name="deleted",
    columns=("job_id", "delete_time", "job_key"),
    keys=3,
)
_REMEMBERED = timedelta(days=365)
_FORGET_LAUNCHES = Sql(
    "DELETE FROM deletions WHERE delete_time < ?", name="forgotten", columns=("delete_time",), keys=1
)


def delete_job(job_id: str, key: int, now: datetime) -> list[Statement]:
    """Deletes a job, and remembers its launches for a year."""
    return [
        Statement(_FORGET_LAUNCHES, (to_micros(now - _REMEMBERED),)),
        Statement(_REMEMBER_LAUNCHES, (job_id, to_micros(now), key)),
        Statement(_DELETE_JOB, (key,)),
    ]


def insert_job(key: int, job: Job) -> list[Statement]:
    """Creates a job with its arms and power limits."""
    spec = job.registered or job.spec
    once = (
        *(json.dumps(getattr(spec, name)) if name in _LISTS else getattr(spec, name) for name in _SPEC),
        *(spec.gpu.gpu_model, spec.gpu.count, spec.gpu.max_power_watts_per_gpu),
        to_micros(job.create_time),
        json.dumps(sorted(job.set_fields)),
    )
    inserted = Statement(_INSERT_JOB, (key, *once, *_job_state(job)))
    return [inserted, *_save_arms(key, job.search.arms), *_save_power_limits(key, job.power_limits)]


def update_job(key: int, before: Job, job: Job) -> list[Statement]:
    """Saves what changed in a job."""
    statements = [Statement(_UPDATE_JOB, (key, *_job_state(job)))]
    pairs = zip(job.search.arms, before.search.arms, strict=True)
    statements += _save_arms(key, [new for new, old in pairs if _differ(new, old)])
    if job.power_limits is not before.power_limits:
        known = set(before.power_limits)
        statements += _save_power_limits(key, [state for state in job.power_limits if state not in known])
    return statements


def _job_state(job: Job) -> tuple[object, ...]:
    search = job.search
    return (
        search.stage.value,
        search.pruning_round,
        search.round_default,
        search.exploring,
        search.min_cost,
        search.min_cost_batch_size,
        search.missed_floor,
        search.bound_stops,
        search.num_trials,
        search.best_known,
        search.best_known_cost,
        search.notes,
        job.num_observations,
        *_monitor(job.monitor),
        _monitors(job.other_monitors),
        job.num_events,
        job.first_notes,
        None if job.registered is None else job.spec.policy,
        None if job.registered is None else json.dumps({name: getattr(job.spec, name) for name in PARAMETERS}),
        job.reset_after,
        to_micros(job.reset_time) if job.reset_time else None,
        job.paused,
        job.pinned,
        job.baseline_requested,
        job.baseline_every,
        json.dumps(job.requests),
        _warnings(job.warnings),
    )


def _save_arms(key: int, arms: Sequence[Arm]) -> list[Statement]:
    return [Statement(_SAVE_ARM, (key, arm.batch_size, *_arm(arm))) for arm in arms]


def _arm(arm: Arm) -> tuple[object, ...]:
    sums = (getattr(getattr(arm, name), part) for name in _SUMS for part in _MOMENTS)
    return (
        arm.pruned,
        arm.excluded,
        arm.banned,
        arm.round_cost,
        arm.num_decided,
        arm.num_converged,
        arm.num_failed,
        arm.num_out_of_memory,
        arm.failed_cost,
        json.dumps(arm.failed_trials),
        arm.out_of_memory,
        arm.cheapest,
        *sums,
    )


def _differ(new: Arm, old: Arm) -> bool:
    """Whether an arm's row differs; its running trials are counted when the job is loaded."""
    return new is not old and _arm(new) != _arm(old)


def _save_power_limits(key: int, states: Sequence[PowerLimitState]) -> list[Statement]:
    nothing = (None,) * len(_SAMPLE)
    values = ((*(s.cheapest or nothing), s.profiling, *(s.highest or nothing)) for s in states)
    return [
        Statement(_SAVE_POWER_LIMIT, (key, state.batch_size, *row)) for state, row in zip(states, values, strict=True)
    ]


def save_trial(key: int, trial: Trial) -> Statement:
    """Creates or saves a trial; its newest measurement and outcome only once it has ended."""
    running = (None, None, False, False)
    judged = running if trial.running else (trial.cost, trial.cost_bound, trial.converged, trial.target_reached)
    last = (None,) * len(_LAST) if trial.last is None or trial.running else _measurement(trial.last)
    values = (
        trial.batch_size,
        trial.origin.value,
        *_policy_role(trial),
        trial.status.value,
        trial.end_reason.value if trial.end_reason else None,
        trial.launch_id,
        to_micros(trial.start_time or _EPOCH),
        trial.start_time is not None,
        to_micros(trial.end_time) if trial.end_time else None,
        *judged,
        trial.observation,
        trial.best_known and not trial.running,
        *last,
        *_monitor(trial.monitor),
        _monitors(trial.other_monitors),
        trial.excluded,
        trial.dispatch_event,
        trial.end_event,
        _warnings(trial.warnings),
        # One JSON column, like the warnings.
        json.dumps(trial.profile) if trial.profile else "",
    )
    return Statement(_SAVE_TRIAL, (key, trial.number, *values))


def add_measurement(key: int, trial_number: int, measured: Measurement) -> Statement:
    """Saves one measurement."""
    epoch, seconds, joules, metric, time, computed, limit = measured
    row = (key, trial_number, epoch, seconds, joules, metric, to_micros(time))
    if computed is None and limit is None:
        return Statement(_ADD_MEASUREMENT, row)
    return Statement(_ADD_COMPUTED, (*row, *(computed or _NOTHING_COMPUTED), limit))


def add_event(key: int, event: JobEvent) -> Statement:
    """Saves an event that the trials do not tell."""
    trial = event.trial
    about: tuple[object, ...] = (None,) * 4
    last: tuple[object, ...] = (None,) * len(_LAST)
    if trial is not None:
        role, _ = _policy_role(trial)
        about = (trial.number, role, trial.end_reason.value if trial.end_reason else None, trial.cost)
        last = last if trial.last is None else _measurement(trial.last)
    return Statement(_ADD_EVENT, (key, event.number, event.kind.value, event.batch_size, *about, *last))


def add_launch(key: int, trial: Trial) -> Statement:
    """Saves what is known of a trial's launch."""
    reason, labels, token_id = trial.launch
    return Statement(_ADD_LAUNCH, (key, trial.number, reason, json.dumps(labels) if labels else "", token_id))


def save_samples(key: int, trial_number: int, samples: Sequence[PowerSample]) -> Statement:
    """Saves all samples of a trial's profile."""
    return Statement(_SAVE_SAMPLES, (key, trial_number, json.dumps(samples)))


def read_samples(row: Row) -> Sequence[PowerSample]:
    """The samples of a row of power_samples, by ascending limit."""
    return sorted(PowerSample(*sample) for sample in json.loads(row["samples"]))


def add_history(entry: HistoryEntry) -> Statement:
    """Adds an entry to the history."""
    time, kind, job_id, message, number, size, token_id = entry
    return Statement(_ADD_HISTORY, (job_id, to_micros(time), kind.value, number, size, message, token_id))


def read_history(row: Row) -> HistoryEntry:
    """A row of history."""
    return HistoryEntry(
        from_micros(row["time"]),
        HistoryKind(row["kind"]),
        row["job_id"],
        row["message"],
        row["trial_number"],
        row["batch_size"],
        row["token_id"],
    )


def keep_measurements(key: int, trial_number: int, newest: int) -> Statement:
    """Deletes all but a trial's newest measurements."""
    return Statement(_KEEP_MEASUREMENTS, (key, trial_number, newest))


def _measurement(measured: Measurement) -> tuple[object, ...]:
    time, computed = to_micros(measured.report_time), measured.computed or _NOTHING_COMPUTED
    sums = measured.time_seconds, measured.energy_joules, measured.metric
    return (measured.epoch, *sums, time, *computed, measured.limit_watts_per_gpu)


def read_job(row: Row, arms: tuple[Arm, ...], limits: Iterable[Row]) -> Job:
    """A job from its row, its arms, and rows with the columns of its power limits."""
    job = _read_job(row, tuple(arm.batch_size for arm in arms), arms)
    known = (each for each in limits if each["steps"] is not None or each["profiling"] is not None)
    return replace(job, power_limits=tuple(map(_read_power_limit, known)))


def read_listed_job(row: Row, position: int | str) -> ListedJob:
    """A job of a list from its row and the columns `batch_sizes`, `available`, `failing` and those of its activity."""
    names = ("batch_sizes", "available", "failing")
    batch_sizes, available, failing = (tuple(sorted(json.loads(row[name] or "[]"))) for name in names)
    activity = None
    if row["num_running"] is not None:
        last_time = from_micros(row["active_time"]) if row["active_time"] else None
        activity = Activity(row["num_running"], last_time, bool(row["attention"]))
    return ListedJob(position, row["job_key"], _read_job(row, batch_sizes, ()), available, failing, activity)


def _read_job(row: Row, batch_sizes: tuple[int, ...], arms: tuple[Arm, ...]) -> Job:
    columns: dict[str, Any] = {name: row[name] for name in _SPEC}
    columns |= {name: bool(row[name]) for name in _BOOLEANS}
    columns |= {name: tuple(json.loads(row[name])) for name in _LISTS}
    spec = JobSpec(
        batch_sizes=batch_sizes,
        gpu=GpuGroup(*(row[name] for name in _GPU)),
        **columns,
    )
    registered = None
    if changed := row["changed_policy"]:
        parameters = json.loads(row["changed_parameters"])
        parameters |= {name: tuple(parameters[name]) for name in _LISTS}
        registered, spec = spec, replace(spec, policy=changed, **parameters)
    search = Search(stage=Stage(row["stage"]), arms=arms, **{name: row[name] for name in _SEARCH})
    return Job(
        spec,
        search,
        create_time=from_micros(row["create_time"]),
        num_observations=row["num_observations"],
        monitor=_read_monitor(row),
        other_monitors=_read_monitors(row),
        num_events=row["num_events"],
        first_notes=row["first_notes"],
        registered=registered,
        set_fields=frozenset(json.loads(row["set_fields"])),
        reset_after=row["reset_after"],
        reset_time=None if row["reset_time"] is None else from_micros(row["reset_time"]),
        paused=bool(row["paused"]),
        pinned=row["pinned"],
        baseline_requested=bool(row["baseline_requested"]),
        baseline_every=row["baseline_every"],
        requests=tuple(json.loads(row["requests"])),
        warnings=_read_warnings(row),
    )


def window_of(row: Row) -> int:
    """The window of a job's policy."""
    changed = row["changed_parameters"]
    return int(json.loads(changed)["window_size"] if changed else row["window_size"])


def _read_power_limit(row: Row) -> PowerLimitState:
    cheapest = None if row["steps"] is None else PowerSample(*(row[name] for name in _SAMPLE))
    highest = None if row["highest_steps"] is None else PowerSample(*(row[name] for name in _HIGHEST))
    return PowerLimitState(row["batch_size"], cheapest, row["profiling"], highest)


def _warnings(warnings: Sequence[TrialWarning]) -> str:
    # One JSON column: they are only ever read with their row.
    return json.dumps([(w.reason.value, w.field, w.message, w.trial_number) for w in warnings])


def _read_warnings(row: Row) -> tuple[TrialWarning, ...]:
    return tuple(TrialWarning(WarningReason(reason), *rest) for reason, *rest in json.loads(row["warnings"]))


def _monitor(monitor: MonitorKinds) -> tuple[object, ...]:
    # The kinds are one JSON column: they are only ever read with their row.
    return json.dumps(monitor.kinds), monitor.quality.value


def _read_monitor(row: Row) -> MonitorKinds:
    kinds, quality = (row[column] for column in _MONITOR)
    return MonitorKinds(tuple(json.loads(kinds)), EnergyQuality(quality))


def _monitors(monitors: Sequence[MonitorKinds]) -> str:
    return json.dumps([(monitor.kinds, monitor.quality.value) for monitor in monitors])


def _read_monitors(row: Row) -> tuple[MonitorKinds, ...]:
    read = json.loads(row["other_monitors"])
    return tuple(MonitorKinds(tuple(kinds), EnergyQuality(quality)) for kinds, quality in read)


def read_arm(row: Row) -> Arm:
    """A row of arms, without what is derived from the trials."""
    reached, missed, counted = (Moments(*read(row)) for read in _READ_SUMS)
    return Arm(
        batch_size=row["batch_size"],
        pruned=bool(row["pruned"]),
        excluded=bool(row["excluded"]),
        banned=bool(row["banned"]),
        round_cost=row["round_cost"],
        num_decided=row["num_decided"],
        num_converged=row["num_converged"],
        num_failed=row["num_failed"],
        num_out_of_memory=row["num_out_of_memory"],
        failed_cost=row["failed_cost"],
        failed_trials=tuple(json.loads(row["failed_trials"])),
        out_of_memory=row["out_of_memory"],
        reached=reached,
        missed=missed,
        cheapest=row["cheapest"],
        counted=counted,
    )


def read_trial(row: Row, job_id: str) -> Trial:
    """A row of trials joined with the newest measurement of a running one (columns `last_…`)."""
    return Trial(
        job_id=job_id,
        number=row["trial_number"],
        batch_size=row["batch_size"],
        origin=TrialOrigin(row["origin"]),
        policy_role=_read_policy_role(row["policy_role"], row["pruning_round"]),
        start_time=from_micros(row["start_time"]) if row["start_known"] else None,
        launch_id=row["launch_id"],
        status=TrialStatus(row["status"]),
        end_reason=EndReason(row["end_reason"]) if row["end_reason"] else None,
        end_time=None if row["end_time"] is None else from_micros(row["end_time"]),
        last=None if row["last_epoch"] is None else read_measurement(row, "last_"),
        cost=row["cost"],
        cost_bound=row["cost_bound"],
        converged=bool(row["converged"]),
        target_reached=bool(row["target_reached"]),
        observation=row["observation"],
        best_known=bool(row["best_known"]),
        monitor=_read_monitor(row),
        other_monitors=_read_monitors(row),
        excluded=bool(row["excluded"]),
        dispatch_event=row["dispatch_event"],
        end_event=row["end_event"],
        warnings=_read_warnings(row),
        profile=_read_profile(row["profile"]),
        launch=_read_launch(row),
    )


def _policy_role(trial: Trial) -> tuple[str | None, int | None]:
    known = trial.policy_role
    return (known.role.value, known.pruning_round) if known else (None, None)


def _read_policy_role(role: str | None, pruning_round: int | None) -> PruningGtsTrial | None:
    return None if role is None or pruning_round is None else PruningGtsTrial(PruningGtsRole(role), pruning_round)


def _read_launch(row: Row) -> Launch:
    if row["reason"] is None:
        return _NO_LAUNCH
    labels = tuple((key, value) for key, value in json.loads(row["labels"])) if row["labels"] else ()
    return Launch(row["reason"], labels, row["token_id"])


def _read_profile(stored: str) -> ProfileResult | None:
    return ProfileResult(*(PowerSample(*sample) for sample in json.loads(stored))) if stored else None


def read_events(job_id: str, trials: Iterable[Row], rows: Iterable[Row]) -> Sequence[JobEvent]:
    """All events of a job in their order, from its rows of trials and of events."""
    by_number = {row["trial_number"]: read_trial(row, job_id) for row in trials}
    found, first_roles = [], dict[int, PruningGtsTrial | None]()
    for row in rows:
        kind, trial = EventKind(row["kind"]), by_number.get(row["trial_number"])
        if trial is not None:
            trial = _at_event(trial, kind, row)
            first_roles.setdefault(trial.number, trial.policy_role)
        found.append(JobEvent(row["event"], kind, row["batch_size"], trial))
    for trial in by_number.values():
        dispatched = trial.renew(None, None)._replace(policy_role=first_roles.get(trial.number, trial.policy_role))
        found.append(JobEvent(trial.dispatch_event, EventKind.DISPATCHED, trial.batch_size, dispatched))
        if trial.end_event is not None:
            kind = EventKind.FAILED if trial.undecided else EventKind.DECIDED
            found.append(JobEvent(trial.end_event, kind, trial.batch_size, trial))
    found.sort(key=lambda event: event.number)  # pragma: no mutate: the number comes first in an event
    return found


def _at_event(trial: Trial, kind: EventKind, row: Row) -> Trial:
    """A trial as it was at an event of its own row."""
    last = None if row["last_epoch"] is None else read_measurement(row, "last_")
    pruning_round = trial.policy_role.pruning_round if trial.policy_role else None
    past = trial.renew(last, None)._replace(policy_role=_read_policy_role(row["policy_role"], pruning_round))
    if kind is EventKind.REPORTED:
        return past
    reason = EndReason(row["end_reason"])
    return past._replace(status=undecided(reason), end_reason=reason, cost=row["cost"])


def read_measurement(row: Row, prefix: str = "") -> Measurement:
    """A row of measurements, or the columns `last_…` of a trial."""
    metric = row[f"{prefix}metric"]
    seconds, joules, watts = (row[f"{prefix}{column}"] for column in _COMPUTED)
    return Measurement(
        epoch=row[f"{prefix}epoch"],
        time_seconds=row[f"{prefix}time_seconds"],
        energy_joules=row[f"{prefix}energy_joules"],
        metric=math.nan if metric is None else metric,
        report_time=from_micros(row[f"{prefix}report_time"]),
        computed=None if seconds is None else ComputedUsage(seconds, joules, watts),
        limit_watts_per_gpu=row[f"{prefix}limit_watts_per_gpu"],
    )
