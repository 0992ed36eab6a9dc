"""The tables: the name, the key, the columns and the merge rule of each.

Both databases render their statements from these descriptions. Most columns follow from the fields of the domain, so
that a new field is a new column. What belongs to one database is not here: the versions and leases of a PostgreSQL.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import Any

from wattwise.rules import PARAMETERS, GpuGroup, ResolvedJob

from wattwise_server.domain import (
    Arm,
    Job,
    Launch,
    Measurement,
    PowerLimitState,
    PowerSample,
    ProfileResult,
    PruningGtsTrial,
    RecordedEvent,
    RecordedSearchEvent,
    Search,
    Trial,
)
from wattwise_server.store.columns import (
    EPOCH,
    Column,
    ColumnType,
    Custom,
    Nested,
    Record,
    Row,
    from_micros,
    json_column,
    record_of,
    to_micros,
)


class Merge(Enum):
    """What a row does whose key the table has already.

    FAIL: the commit fails. REPLACE: it replaces all columns. UPDATE: a new row fails, and a changed one replaces the
    columns that may change.
    """

    FAIL = "FAIL"
    REPLACE = "REPLACE"
    UPDATE = "UPDATE"


@dataclass(frozen=True, eq=False)
class Table:
    """A table.

    Attributes:
        name: Its name.
        key: The columns that identify a row; empty: the database numbers the rows.
        columns: All columns, those of the key first.
        merge: What a row with a known key does.
        fixed: Columns of a table whose rows are updated that never change.
        from_schema: Whether the database itself fills the table when it is created.
    """

    name: str
    key: tuple[Column, ...]
    columns: tuple[Column, ...]
    merge: Merge = Merge.FAIL
    fixed: tuple[Column, ...] = ()
    from_schema: bool = False

    def place(self, column: str) -> int:
        """Returns the place of a column's value in a row."""
        return [each.name for each in self.columns].index(column)

    @property
    def changing(self) -> tuple[Column, ...]:
        """The columns that a changed row replaces."""
        return tuple(column for column in self.columns if column not in (*self.key, *self.fixed))


def _integers(*names: str) -> tuple[Column, ...]:
    return tuple(Column(name, ColumnType.INTEGER, name) for name in names)


def _texts(*names: str) -> tuple[Column, ...]:
    return tuple(Column(name, ColumnType.TEXT, name) for name in names)


def _table(name: str, key: tuple[Column, ...], *records: Record[Any], merge: Merge = Merge.FAIL) -> Table:
    return Table(name, key, (*key, *(column for record in records for column in record.columns)), merge)


_OF_JOB = _integers("job_key")
_OF_BATCH_SIZE = _integers("job_key", "batch_size")
_OF_TRIAL = _integers("job_key", "trial_number")

SPEC = record_of(
    ResolvedJob,
    Nested("gpu", record_of(GpuGroup, Column("gpu_count", ColumnType.INTEGER, "count"))),
    skip=("batch_sizes",),
)
_FIXED = ("create_time", "set_fields")
REGISTRATION = record_of(Job, only=_FIXED)
SEARCH = record_of(Search, skip=("arms",))
JOB = record_of(Job, skip=("spec", "registered", "search", "power_limits", *_FIXED))
CHANGED_POLICY = Column("changed_policy", ColumnType.TEXT, "policy")
CHANGED_PARAMETERS = Column(
    "changed_parameters",
    ColumnType.TEXT,
    "spec",
    lambda spec: json.dumps({name: getattr(spec, name) for name in PARAMETERS}),
    lambda text: {name: tuple(value) if isinstance(value, list) else value for name, value in json.loads(text).items()},
)
_REGISTERED = (*_OF_JOB, *SPEC.columns, *REGISTRATION.columns)
JOBS = Table(
    "jobs",
    _OF_JOB,
    (*_REGISTERED, *SEARCH.columns, *JOB.columns, CHANGED_POLICY, CHANGED_PARAMETERS),
    Merge.UPDATE,
    fixed=_REGISTERED,
)

ARM = record_of(Arm, skip=("batch_size", "running", "kept"))
ARMS = _table("arms", _OF_BATCH_SIZE, ARM, merge=Merge.REPLACE)
POWER_LIMIT = record_of(PowerLimitState, skip=("batch_size",))
POWER_LIMITS = _table("power_limits", _OF_BATCH_SIZE, POWER_LIMIT, merge=Merge.REPLACE)


def _write_start(start: datetime | None) -> tuple[object, ...]:
    return to_micros(start or EPOCH), start is not None


def _read_start(row: Row) -> datetime | None:
    return from_micros(row["start_time"]) if row["start_known"] else None


# A list of trials is ordered by the start, also where it is unknown.
_START = Custom(
    "start_time",
    (
        Column("start_time", ColumnType.INTEGER, "start_time"),
        Column("start_known", ColumnType.BOOLEAN, "start_time"),
    ),
    _write_start,
    _read_start,
)
_POLICY_ROLE = Nested("policy_role", record_of(PruningGtsTrial))
TRIAL = record_of(
    Trial,
    _START,
    _POLICY_ROLE,
    json_column("profile", ProfileResult),
    skip=("job_id", "number", "lease_expire_time", "launch", "heartbeat_interval"),
)
TRIALS = _table("trials", _OF_TRIAL, TRIAL, merge=Merge.REPLACE)
MEASUREMENT = record_of(Measurement)
MEASUREMENTS = Table("measurements", (*_OF_TRIAL, MEASUREMENT.columns[0]), (*_OF_TRIAL, *MEASUREMENT.columns))
# Apart from the trials, whose rows are written again at their ends.
LAUNCH = record_of(Launch)
LAUNCHES = _table("launches", _OF_TRIAL, LAUNCH)
SAMPLES = json_column("samples", tuple[PowerSample, ...])
POWER_SAMPLES = Table("power_samples", _OF_TRIAL, (*_OF_TRIAL, SAMPLES), Merge.REPLACE)

# A trial as it was at an event, as far as its own row does not tell.
TRIAL_AT_EVENT = record_of(
    Trial,
    Column("trial_number", ColumnType.INTEGER, "number"),
    _POLICY_ROLE,
    only=("number", "policy_role", "end_reason", "cost", "last"),
)
SEARCH_EVENT = record_of(RecordedSearchEvent, Nested("trial", TRIAL_AT_EVENT))
SEARCH_EVENTS = Table("search_events", (*_OF_JOB, SEARCH_EVENT.columns[0]), (*_OF_JOB, *SEARCH_EVENT.columns))
EVENT = record_of(RecordedEvent)
EVENTS = _table("events", (), EVENT)
_DELETION = (*_texts("job_id", "launch_id"), *_integers("create_time"))
DELETIONS = Table("deletions", _DELETION, (*_DELETION, *_integers("delete_time")))
SECRETS = Table("secrets", _texts("name"), _texts("name", "value"), from_schema=True)

TABLES = (
    JOBS,
    ARMS,
    POWER_LIMITS,
    TRIALS,
    MEASUREMENTS,
    LAUNCHES,
    POWER_SAMPLES,
    SEARCH_EVENTS,
    EVENTS,
    DELETIONS,
    SECRETS,
)
"""All tables, none before one that its rows refer to."""
