"""All reads of the database, through a pool of connections."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import cast

import asyncpg

from wattwise_server.domain import Trial
from wattwise_server.errors import StorageUnavailableError
from wattwise_server.store.columns import Row, from_micros
from wattwise_server.store.lists import Dialect
from wattwise_server.store.postgres.failures import ERRORS, summary
from wattwise_server.store.reads import TRIAL_COLUMNS, Reads
from wattwise_server.store.rows import read_trial

_ACQUIRE_SECONDS = 5.0

_LEASE = (
    ", (SELECT expires FROM leases l WHERE l.job_key = t.job_key AND l.trial_number = t.trial_number) AS lease_expires"
)


class PostgresReads(Reads):
    """The reads of a database, through a pool of connections.

    Attributes:
        unusable: Why this program cannot use the schema; empty if it can.
    """

    job_sql = "SELECT * FROM jobs JOIN job_versions USING (job_key) WHERE job_id = $1"
    trial_columns = TRIAL_COLUMNS + _LEASE
    dialect = Dialect(
        json_array="json_agg",
        # Longer than any id.
        greatest="repeat(chr(1114111), 200)",
        largest="greatest",
        contains='strpos(lower(j.job_id), lower({}::text COLLATE "C"))',
        has_label=("EXISTS (SELECT 1 FROM json_array_elements(l.labels::json) e WHERE e->>0 = {} AND e->>1 = {})"),
    )

    def __init__(self, pool: asyncpg.Pool[asyncpg.Record]) -> None:
        self.pool = pool
        self.unusable = ""

    async def new_key(self) -> int:
        """Returns a key for a new job."""
        ((key,),) = await self._all("SELECT nextval('job_keys')")
        return int(key)

    async def versions(self, job_ids: Sequence[str]) -> dict[str, int]:
        """Returns the versions of jobs, as far as they exist."""
        sql = "SELECT job_id, version FROM jobs JOIN job_versions USING (job_key) WHERE job_id = ANY ($1)"
        return {row["job_id"]: row["version"] for row in await self._all(sql, list(map(_storable, job_ids)))}

    async def expired_leases(self) -> Sequence[Row]:
        """Returns rows of job_id and trial_number, which this server is to give up."""
        return await self._all("SELECT * FROM expired_leases_1()")

    async def min_reader(self) -> int:
        """Returns the oldest version of the program that can work with the schema."""
        # It decides about admission.
        ((version,),) = await self._fetch("SELECT min_reader_version FROM wattwise_schema", (), slow=False)
        return int(version)

    async def begin_retention(self, seconds: float) -> bool:
        """Returns whether no server has looked for old measurements for some time; from now on this one has."""
        sql = "UPDATE retention SET began = micros_now() WHERE began < micros_now() - $1 RETURNING TRUE"
        return bool(await self._all(sql, int(seconds * 1e6)))

    async def run(self, sql: str, parameters: Sequence[Sequence[object]]) -> None:
        """Runs a statement with each of several lists of parameters, in one transaction.

        Raises:
            StorageUnavailableError: nothing was changed.
        """
        try:
            await self.pool.executemany(sql, parameters)
        except ERRORS as error:
            raise StorageUnavailableError(f"the database could not be written ({summary(error)}); retry") from error

    def _trial(self, row: Row, job_id: str) -> Trial:
        trial = read_trial(row, job_id)
        expires = row["lease_expires"]
        return trial if expires is None else trial._replace(lease_expire_time=from_micros(expires))

    def admit(self) -> None:
        """Refuses calls that would read or write what this program does not know."""
        if self.unusable:
            raise StorageUnavailableError(self.unusable)

    async def _fetch(self, sql: str, parameters: Sequence[object], *, slow: bool) -> Sequence[Row]:  # noqa: ARG002 - any connection
        # A caller that is cancelled would cost a connection: asyncpg opens another one to cancel the query.
        reading = asyncio.ensure_future(self._fetch_pooled(sql, parameters))
        try:
            return await asyncio.shield(reading)
        except asyncio.CancelledError:
            # Its error would be reported as never retrieved.
            reading.add_done_callback(_ignore_error)
            raise

    async def _fetch_pooled(self, sql: str, parameters: Sequence[object]) -> Sequence[Row]:
        try:
            # While the database is silent, those that wait for a connection do not become more and more.
            async with self.pool.acquire(timeout=_ACQUIRE_SECONDS) as connection:
                return cast(Sequence[Row], await connection.fetch(sql, *map(_storable, parameters)))
        except ERRORS as error:
            raise StorageUnavailableError(f"the database could not be read ({summary(error)}); retry") from error


def _ignore_error(reading: asyncio.Future[Sequence[Row]]) -> None:
    if not reading.cancelled():
        reading.exception()


def _storable(value: object) -> object:
    """Returns what equals no text in the database either, if a text has NUL characters, which PostgreSQL refuses."""
    return value.replace("\0", "\x01") if isinstance(value, str) and "\0" in value else value
