"""The call that commits a group: a temporary function of the connection, and a statement for a group of one report.

Both follow from the descriptions of the tables, and are made when the connection is opened. So a server needs no
function of its version in the database, and servers of several versions share one.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import Any, cast

from wattwise_server.store.changes import Change, DeleteJob, Expired, KeepMeasurements, Lease, Put, Room, Update
from wattwise_server.store.columns import Column
from wattwise_server.store.tables import DELETIONS, JOBS, MEASUREMENTS, SECRETS, TABLES, Merge, Table
from wattwise_server.store.transactions import CachedJob
from wattwise_server.store.writer import Submission

_WRITTEN = tuple(table for table in TABLES if table not in (MEASUREMENTS, DELETIONS, SECRETS))
"""The tables whose rows the function takes as JSON; those of measurements come with every report, as arrays."""

# What the function compares of jobs that are only read.
_COMPARE = """
    SELECT array_agg(e.job_key) FROM unnest($1::bigint[], $2::bigint[]) AS e (job_key, version)
    LEFT JOIN job_versions v ON v.job_key = e.job_key WHERE v.version IS DISTINCT FROM e.version
"""

_JOB_ID = JOBS.place("job_id")


def save_function() -> str:
    """Returns the definition of the function."""
    text = (files("wattwise_server.store.postgres") / "save.sql").read_text()
    parameters = [f"{table.name}_rows json" for table in _WRITTEN]
    parameters += [
        "changed_jobs_rows json",
        *(f"{_array(column)} {column.type.value}[]" for column in MEASUREMENTS.columns),
    ]
    writes = [_insert(table) for table in _WRITTEN]
    writes[_WRITTEN.index(JOBS) + 1 : _WRITTEN.index(JOBS) + 1] = [_update_jobs()]
    writes.append(_insert_measurements())
    return text.replace("{parameters}", ", ".join(parameters)).replace("{writes}", "\n".join(writes))


def _insert(table: Table) -> str:
    names, known = _names(table.columns), ""
    if table.merge is Merge.REPLACE:
        changes = ", ".join(f"{column.name} = excluded.{column.name}" for column in table.changing)
        known = f" ON CONFLICT ({_names(table.key)}) DO UPDATE SET {changes}"
    return (
        f"IF {table.name}_rows IS NOT NULL THEN INSERT INTO {table.name} ({names}) SELECT {names} "  # noqa: S608
        f"FROM json_populate_recordset(NULL::{table.name}, {table.name}_rows){known}; END IF;"
    )


def _update_jobs() -> str:
    changes = ", ".join(f"{column.name} = n.{column.name}" for column in JOBS.changing)
    # One by one, each by its key: whatever the planner knows of the table, it cannot choose to read all of it.
    return (
        "IF changed_jobs_rows IS NOT NULL THEN "  # noqa: S608 - names of ours
        "FOR n IN SELECT * FROM json_populate_recordset(NULL::jobs, changed_jobs_rows) LOOP "
        f"UPDATE jobs j SET {changes} WHERE j.job_key = n.job_key; END LOOP; END IF;"
    )


def _insert_measurements() -> str:
    names, arrays = _names(MEASUREMENTS.columns), [_array(column) for column in MEASUREMENTS.columns]
    return (
        f"IF cardinality({arrays[0]}) = 1 THEN INSERT INTO measurements ({names}) "  # noqa: S608 - as above
        f"VALUES ({', '.join(f'{array}[1]' for array in arrays)}); "
        f"ELSIF {arrays[0]} IS NOT NULL THEN INSERT INTO measurements ({names}) "
        f"SELECT * FROM unnest({', '.join(arrays)}); END IF;"
    )


def _array(column: Column) -> str:
    return f"measured_{column.name}"


def _names(columns: Iterable[Column]) -> str:
    return ", ".join(column.name for column in columns)


def _save_report() -> str:
    """Returns the statement for a group of one report: $1 to $4 describe the group, the rest are the report."""
    values = ", ".join(f"${place}::{column.type.value}" for place, column in enumerate(MEASUREMENTS.columns, 5))
    return f"""
        WITH changed AS (
            UPDATE job_versions SET version = version + 1, server = $1, group_number = $2
            WHERE job_key = $5::bigint AND version = $3 RETURNING job_key
        ), renewed AS (
            UPDATE leases l SET expires = greatest(l.expires, micros_now() + $4::bigint), claimed = 0 FROM changed
            WHERE $4::bigint IS NOT NULL AND l.job_key = $5::bigint AND l.trial_number = $6::bigint
        ), reported AS (
            INSERT INTO measurements ({_names(MEASUREMENTS.columns)}) SELECT {values} FROM changed
        )
        SELECT CASE WHEN EXISTS (SELECT FROM changed) THEN NULL ELSE ARRAY[$5::bigint] END
    """  # noqa: S608 - names of ours


_SAVE_REPORT = _save_report()


@cache
def _save(num_arguments: int) -> str:
    """Returns the call of the function."""
    return f"SELECT pg_temp.save({', '.join(f'${place}' for place in range(1, num_arguments + 1))})"


class GroupCall:
    """The call that commits a group.

    Attributes:
        owners: The jobs of the group by key.
        changed: The jobs that it changes, with the version of each that was read.
        created: The jobs that it creates, with their ids.
        num_rows: How many rows it writes.
    """

    def __init__(self, group: Sequence[Submission]) -> None:
        self.owners: dict[int, CachedJob] = {}
        self.changed: dict[int, int] = {}
        self.created: dict[int, str] = {}
        self.num_rows = 0
        # The jobs that it only reads.
        self._read: dict[int, int] = {}
        # By table; where a row replaces another one only the last counts.
        self._added: dict[Table, list[Sequence[Any]]] = {}
        self._replaced: dict[Table, dict[Sequence[Any], Sequence[Any]]] = {}
        self._updated_jobs: dict[Any, Sequence[Any]] = {}
        self._kept: dict[tuple[int, int], KeepMeasurements] = {}
        self._deleted: list[DeleteJob] = []
        # How long, and whether the trial starts to run.
        self._leases: dict[tuple[int, int], tuple[int | None, bool]] = {}
        self._expired: dict[Expired, None] = {}
        self._rooms: list[Room] = []
        for submission in group:
            self._add(cast(CachedJob, submission.owner), submission.changes)

    @property
    def writes(self) -> bool:
        """Whether it changes a job, so that it must not be repeated."""
        return bool(self.changed or self.created)

    def _add(self, owner: CachedJob, changes: Sequence[Change]) -> None:
        num_rows = self.num_rows
        for change in changes:
            self._add_change(owner, change)
        self.owners[owner.key] = owner
        if owner.key in self.created:
            return
        if self.num_rows > num_rows:
            self.changed[owner.key] = owner.version
            self._read.pop(owner.key, None)
        elif owner.key not in self.changed:
            self._read[owner.key] = owner.version

    def _add_change(self, owner: CachedJob, change: Change) -> None:
        match change:
            case Lease(job_key, trial_number, micros, starts):
                _, started = self._leases.get((job_key, trial_number), (None, False))
                self._leases[job_key, trial_number] = micros, starts or started
                self.num_rows += starts
                return
            case Expired():
                self._expired[change] = None
                return
            case Room():
                self._rooms.append(change)
                return
        self.num_rows += 1
        match change:
            case Put(table, values) if table.merge is Merge.REPLACE:
                self._replaced.setdefault(table, {})[tuple(values[: len(table.key)])] = values
            case Put(table, values):
                self._added.setdefault(table, []).append(values)
                if table is JOBS:
                    self.created[owner.key] = str(values[_JOB_ID])
            case Update(_, values):
                self._updated_jobs[values[0]] = values
            case KeepMeasurements(job_key, trial_number):
                self._kept[job_key, trial_number] = change
            case DeleteJob():
                self._deleted.append(change)
            case _:
                raise TypeError(change)

    def query(self, server: int, number: int) -> tuple[str, Sequence[object]]:
        """Returns the statement with its parameters."""
        report = self._lone_report()
        if report is not None:
            return _SAVE_REPORT, (server, number, *report)
        if self._reads_only:
            return _COMPARE, _pairs(self._read)
        arguments = (server, number, *self._arguments())
        return _save(len(arguments)), arguments

    @property
    def _reads_only(self) -> bool:
        return not (self.writes or self._leases or self._expired or self._rooms)

    def _lone_report(self) -> Sequence[object] | None:
        """Returns the parameters of a group that is one report, as most are without load; None for other groups."""
        rows = self._added.get(MEASUREMENTS, ())
        others = len(self.owners) != 1 or len(self._leases) > 1 or self._expired or self._rooms
        if self.num_rows != 1 or len(rows) != 1 or others:
            return None
        (row,), micros = rows, None
        if self._leases:
            ((place, (micros, starts)),) = self._leases.items()
            if starts or micros is None or place != tuple(row[:2]):
                return None
        return (self.changed[row[0]], micros, *row)

    def _arguments(self) -> list[object]:
        leases, measured = self._sorted_leases(), self._added.get(MEASUREMENTS, ())
        return [
            *_pairs(self.changed),
            *_pairs(self._read),
            *_pairs(self.created),
            *_transposed(self._limits(), 3),
            *_transposed(self._expired, 2),
            *_transposed(leases[True], 3),
            *_transposed(leases[False], 3),
            *_transposed(leases[None], 2),
            _json(KeepMeasurements._fields, self._kept.values()),
            _json(DeleteJob._fields, self._deleted),
            *(_json(_field_names(table.columns), self._rows(table)) for table in _WRITTEN),
            _json(_field_names((*JOBS.key, *JOBS.changing)), self._updated_jobs.values()),
            *_transposed(measured, len(MEASUREMENTS.columns)),
        ]

    def _rows(self, table: Table) -> Collection[Sequence[Any]]:
        if table.merge is Merge.REPLACE:
            return self._replaced.get(table, {}).values()
        rows = self._added.get(table, [])
        # In an order that all servers have, so that two that create the same jobs do not wait for each other.
        return sorted(rows, key=lambda row: str(row[_JOB_ID])) if table is JOBS else rows

    def _limits(self) -> list[tuple[str, int, int]]:
        """Returns each limit, less the jobs that the group creates before."""
        ids = list(self.created.values())
        places = {key: place for place, key in enumerate(self.created)}
        return [
            (prefix, limit - sum(job_id.startswith(prefix) for job_id in ids[: places[key]]), key)
            for prefix, limit, key in self._rooms
            if key in places
        ]

    def _sorted_leases(self) -> Mapping[bool | None, Sequence[tuple[int, ...]]]:
        """Returns the leases of trials that start to run (True), go on (False) and have ended (None)."""
        found: dict[bool | None, list[tuple[int, ...]]] = {True: [], False: [], None: []}
        # In order, so that two servers that renew the same leases do not wait for each other.
        for place, (micros, starts) in sorted(self._leases.items()):
            if micros is None:
                found[None].append(place)
            else:
                found[starts].append((*place, micros))
        return found


def _field_names(columns: Iterable[Column]) -> Sequence[str]:
    return [column.name for column in columns]


def _json(names: Sequence[str], rows: Collection[Sequence[Any]]) -> str | None:
    if not rows:
        return None
    try:
        return json.dumps([dict(zip(names, row, strict=True)) for row in rows], allow_nan=False)
    except ValueError:
        return json.dumps([dict(zip(names, map(_infinite, row), strict=True)) for row in rows])


def _infinite(value: object) -> object:
    """Returns an infinity, for which JSON has no number, as a text that PostgreSQL reads as one."""
    return str(value) if isinstance(value, float) and math.isinf(value) else value


def _pairs(values: Mapping[Any, Any]) -> tuple[object, object]:
    return (list(values), list(values.values())) if values else (None, None)


def _transposed(rows: Iterable[Sequence[object]], columns: int) -> Sequence[object]:
    return [list(column) for column in zip(*rows, strict=True)] or (None,) * columns
