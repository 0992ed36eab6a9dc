"""The use cases in process, on their own file, with a clock that tests set."""

from __future__ import annotations

import sqlite3
from contextlib import AsyncExitStack, closing
from datetime import datetime, timedelta, timezone
from enum import Enum
from pathlib import Path
from types import NoneType
from typing import Any, get_args, get_origin, get_type_hints

import aiosqlite
from wattwise.rules import GpuGroup, JobDraft
from wattwise_server.config import Limits
from wattwise_server.domain import Decision, TrialId
from wattwise_server.events import Event
from wattwise_server.observability.observers import Notification, Observers
from wattwise_server.store.sqlite.connection import Group
from wattwise_server.store.sqlite.open import open_sqlite
from wattwise_server.store.transactions import Store
from wattwise_server.usecases.administration import Administration
from wattwise_server.usecases.report import Report
from wattwise_server.usecases.training import Training

BEGIN = datetime(2026, 1, 1, tzinfo=timezone.utc)
_SIMPLE = {
    bool: True,
    int: 2**40,
    float: 0.1 + 0.2,
    str: "a ü",
    datetime: BEGIN + timedelta(microseconds=1),
    timedelta: timedelta(seconds=1),
}


def value_of(kind: Any) -> Any:
    """Returns a value of the type of a domain's field, which is no field's default."""
    arguments = [each for each in get_args(kind) if each not in (NoneType, Ellipsis)]
    if get_origin(kind) is tuple:
        return tuple(map(value_of, arguments))
    if arguments:
        return value_of(arguments[0])
    if issubclass(kind, Enum):
        return list(kind)[-1]
    return _SIMPLE[kind] if kind in _SIMPLE else kind(**values_of(kind))


def values_of(kind: type[Any]) -> dict[str, Any]:
    """Returns a value of every field of a NamedTuple, by name."""
    return {name: value_of(each) for name, each in get_type_hints(kind).items()}


class Published(Observers):
    """Keeps the kinds of events that were published."""

    def __init__(self) -> None:
        super().__init__()
        self.wants_reports = True
        self.kinds: list[type[Event]] = []

    def prepare(self, event: Event) -> Notification:
        """Keeps the event's kind once it is durable."""
        return lambda: self.kinds.append(type(event))


class Site:
    """The use cases on one file, with a clock that tests set; it can be closed and opened again."""

    def __init__(self, file: Path, **limits: Any) -> None:
        self.file = file
        self.now = BEGIN
        self._limits = Limits(**limits)
        self._opened = AsyncExitStack()
        self.training: Training
        self.administration: Administration

    async def open(self) -> None:
        """Opens the file, after closing it if it is open."""
        await self._opened.aclose()
        self.store = await self._opened.enter_async_context(open_sqlite(f"sqlite:///{self.file}", lambda: self.now))
        self.training = Training(self.store, self._limits)
        self.administration = Administration(self.store)

    async def close(self) -> None:
        """Closes the file."""
        await self._opened.aclose()

    def rows(self) -> dict[tuple[int, int], list[int]]:
        """The epochs in the file, by job and trial."""
        found: dict[tuple[int, int], list[int]] = {}
        with closing(sqlite3.connect(self.file)) as connection:
            for key, number, epoch in connection.execute("SELECT job_key, trial_number, epoch FROM measurements"):
                found.setdefault((key, number), []).append(epoch)
        return found


def writing_connection(store: Store) -> aiosqlite.Connection:
    """The connection through which a store of a file commits."""
    committer = store.writer.committer
    assert isinstance(committer, Group)
    return committer.connection


def draft(job_id: str = "j", **fields: Any) -> JobDraft:
    """A job of the paper's policy, whose cost is its energy, with leases of an hour."""
    usual: dict[str, Any] = {
        "job_id": job_id,
        "job_id_prefix": "j",
        "batch_sizes": (8, 16, 32),
        "default_batch_size": 16,
        "gpu": GpuGroup(gpu_model="Test GPU", count=1, max_power_watts_per_gpu=100.0),
        "policy": "pruning_gts",
        "eta_knob": 1.0,
        "max_epochs": 10,
        "target_metric": 0.9,
        "higher_is_better": True,
        "seed": 1,
        "num_pruning_rounds": 1,
        "trial_lease_seconds": 3600.0,
    }
    return usual | fields


async def report(site: Site, key: TrialId, epoch: int, metric: float = 0.1) -> Decision:
    """Reports an epoch that cost 10 J."""
    return await site.training.report(Report(key, epoch, float(epoch), 10.0 * epoch, metric))
