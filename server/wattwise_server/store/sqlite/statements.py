"""The statements that make changes in SQLite."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import cache, lru_cache
from itertools import chain, groupby
from typing import Any, TypeAlias

from wattwise_server.store.changes import (
    Change,
    DeleteJob,
    KeepMeasurements,
    PruneEvents,
    PruneMeasurements,
    Put,
    Update,
)
from wattwise_server.store.columns import Column
from wattwise_server.store.retention import PRUNE_EVENTS, PRUNE_MEASUREMENTS
from wattwise_server.store.tables import DELETIONS, TABLES, Merge, Table

_LARGEST_INSERT = 64
"""Rows; fewer than the statements that a connection keeps prepared, as there is one for each number of rows."""

_PLACES = {table: place for place, table in enumerate(TABLES)}
_KEEP_MEASUREMENTS = """
    DELETE FROM measurements WHERE job_key = ?1 AND trial_number = ?2 AND epoch <= (
        SELECT epoch FROM measurements WHERE job_key = ?1 AND trial_number = ?2 ORDER BY epoch DESC LIMIT 1 OFFSET ?3)
"""
FORGET_DELETIONS = "DELETE FROM deletions WHERE delete_time < ?"
# Imports are not remembered: history may be imported again.
_REMEMBER_LAUNCHES = f"""
    INSERT OR REPLACE INTO deletions ({", ".join(column.name for column in DELETIONS.columns)})
    SELECT job_id, '', create_time, ?2 FROM jobs WHERE job_key = ?1 UNION ALL
    SELECT ?3, launch_id, start_time, ?2 FROM trials WHERE job_key = ?1 AND origin != 'IMPORTED'
"""  # noqa: S608 - names of ours
_DELETE_JOB = "DELETE FROM jobs WHERE job_key = ?"

Statement: TypeAlias = tuple[str, Sequence[Any]]
"""SQL with its parameters."""

_Target: TypeAlias = tuple[type, Table | None]


# Some texts have the keys of jobs.
@lru_cache(1000)
def numbered(sql: str) -> str:
    """Returns the text with parameters as SQLite spells them."""
    return re.sub(r"\$(\d+)", r"?\1", sql)


def statements(changes: Sequence[Change]) -> Iterator[Statement]:
    """Yields the statements that make changes within one transaction.

    The rows of each table are written together. If a job is deleted, every change is made in its place instead.
    """
    if any(type(change) is DeleteJob for change in changes):
        groups = [(target, list(alike)) for target, alike in groupby(changes, key=_target)]
    else:
        together: dict[_Target, list[Change]] = {}
        for change in changes:
            together.setdefault(_target(change), []).append(change)
        groups = sorted(together.items(), key=lambda group: _place(group[0]))
    for (kind, table), alike in groups:
        if kind is Put and table is not None and table.merge is not Merge.REPLACE:
            yield from _inserts(table, alike)
        else:
            yield from chain.from_iterable(map(_statements, alike))


def _statements(change: Change) -> Sequence[Statement]:
    match change:
        case Put(table, values):
            return [(_upsert(table), values)]
        case Update(table, values):
            return [(_update(table), values)]
        case KeepMeasurements():
            return [(_KEEP_MEASUREMENTS, change)]
        case PruneMeasurements():
            return [(numbered(PRUNE_MEASUREMENTS), change)]
        case PruneEvents():
            return [(numbered(PRUNE_EVENTS), change)]
        case DeleteJob(key, job_id, delete_time, forget_before):
            remembered = _REMEMBER_LAUNCHES, (key, delete_time, job_id)
            return [(FORGET_DELETIONS, (forget_before,)), remembered, (_DELETE_JOB, (key,))]
        case _:
            raise TypeError(change)


def _target(change: Change) -> _Target:
    # For every report: a union would be made each time.
    return type(change), change.table if isinstance(change, (Put, Update)) else None


def _place(target: _Target) -> tuple[int, bool]:
    # A new job comes before its changes; measurements are deleted when all rows are written.
    kind, table = target
    return (len(_PLACES), False) if table is None else (_PLACES[table], kind is Update)


def _inserts(table: Table, changes: Sequence[Change]) -> Iterator[Statement]:
    rows = [change.values for change in changes if isinstance(change, Put)]
    for begin in range(0, len(rows), _LARGEST_INSERT):
        some = rows[begin : begin + _LARGEST_INSERT]
        yield _insert(table, len(some)), list(chain.from_iterable(some))


@cache
def _insert(table: Table, count: int) -> str:
    row = f"({', '.join('?' * len(table.columns))})"
    return f"INSERT INTO {table.name} ({_names(table.columns)}) VALUES {', '.join([row] * count)}"  # noqa: S608


@cache
def _upsert(table: Table) -> str:
    changes = ", ".join(f"{column.name} = excluded.{column.name}" for column in table.changing)
    return f"{_insert(table, 1)} ON CONFLICT ({_names(table.key)}) DO UPDATE SET {changes}"


@cache
def _update(table: Table) -> str:
    key, changing = len(table.key), table.changing
    conditions = " AND ".join(f"{column.name} = ?{place}" for place, column in enumerate(table.key, 1))
    changes = ", ".join(f"{column.name} = ?{place}" for place, column in enumerate(changing, key + 1))
    return f"UPDATE {table.name} SET {changes} WHERE {conditions}"  # noqa: S608


def _names(columns: Sequence[Column]) -> str:
    return ", ".join(column.name for column in columns)
