"""All reads of the file, on a separate read-only connection."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from datetime import datetime

import aiosqlite

from wattwise_server.domain import Trial
from wattwise_server.errors import StorageUnavailableError
from wattwise_server.store.columns import Row
from wattwise_server.store.lists import Dialect
from wattwise_server.store.reads import Reads
from wattwise_server.store.rows import read_trial
from wattwise_server.store.sqlite.connection import explain
from wattwise_server.store.sqlite.database_file import DatabaseFile
from wattwise_server.store.sqlite.statements import numbered

_RUNNING_LEASES = """
    SELECT job_id, job_key, trial_number, trial_lease_seconds FROM trials JOIN jobs USING (job_key)
    WHERE status = 'RUNNING' AND trial_lease_seconds > 0
"""


class SqliteReads(Reads):
    """The reads of a file.

    Attributes:
        quick, slow: The connections for quick queries, and for those that take long; may be the same.
        file: The file.
        lease_of: Returns the lease of a running trial, since leases are in memory.
    """

    dialect = Dialect(
        json_array="json_group_array",
        # In UTF-8, no text that starts with the prefix is greater than it with the byte FF behind.
        greatest="CAST(x'FF' AS TEXT)",
        largest="max",
        contains="instr(lower(j.job_id), lower({}))",
        has_label=(
            "EXISTS (SELECT 1 FROM json_each(l.labels) e"
            " WHERE json_extract(e.value, '$[0]') = {} AND json_extract(e.value, '$[1]') = {})"
        ),
    )

    def __init__(
        self, connection: aiosqlite.Connection, file: DatabaseFile, slow: aiosqlite.Connection | None = None
    ) -> None:
        """Takes connections whose row factory is `sqlite3.Row`; without `slow`, the one is for both."""
        self.quick = connection
        self.slow = slow or connection
        self.file = file
        self.lease_of: Callable[[str, int], datetime | None] = lambda _job_id, _number: None

    async def running_leases(self) -> Sequence[Row]:
        """Returns the running trials that have a lease: their job_id, job_key, trial_number and trial_lease_seconds."""
        return await self._all(_RUNNING_LEASES)

    def check(self) -> None:
        """Checks that the file is where it was opened.

        Raises:
            StorageUnavailableError: it is not.
        """
        try:
            self.file.check()
        except sqlite3.Error as error:
            raise StorageUnavailableError(f"the database is gone ({explain(error)})") from error

    def admit(self) -> None:
        """Refuses calls once the file was found to be gone."""
        if self.file.gone:
            self.check()

    def _trial(self, row: Row, job_id: str) -> Trial:
        trial = read_trial(row, job_id)
        return trial._replace(lease_expire_time=self.lease_of(job_id, trial.number)) if trial.running else trial

    async def _fetch(self, sql: str, parameters: Sequence[object], *, slow: bool) -> Sequence[Row]:
        connection = self.slow if slow else self.quick
        try:
            self.file.check_after_pause()
            return list(await connection.execute_fetchall(numbered(sql), parameters))  # type: ignore[arg-type]
        except (sqlite3.Error, ValueError) as error:
            # aiosqlite raises ValueError for a closed connection.
            raise StorageUnavailableError(f"the database could not be read ({explain(error)}); retry") from error
