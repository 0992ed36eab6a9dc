"""Opens the store of a database's URL."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager

from wattwise_server.clock import Clock
from wattwise_server.errors import StartError
from wattwise_server.observability.events import NO_OBSERVERS, Observer
from wattwise_server.store.cache import CachedStore
from wattwise_server.store.sqlite.open import open_sqlite

POSTGRES_SCHEMES = ("postgresql://", "postgres://")


def is_shared(url: str) -> bool:
    """Whether a URL names a PostgreSQL, which any number of servers share."""
    return url.startswith(POSTGRES_SCHEMES)


def open_store(url: str, clock: Clock, observer: Observer = NO_OBSERVERS) -> AbstractAsyncContextManager[CachedStore]:
    """The store of a database, which is created or migrated first; the block's exit closes everything.

    Args:
        url: `sqlite:///FILE` or `postgresql://…`.
        clock: The time of a SQLite file's store; a PostgreSQL has its own.
        observer: Learns of every commit.

    Raises:
        StartError: the database cannot be opened, or is not one of Wattwise.
    """
    if not is_shared(url):
        return open_sqlite(url, clock, observer)
    try:
        from wattwise_server.store.postgres.open import open_postgres  # noqa: PLC0415 - the extra may be missing
    except ImportError as error:
        if error.name != "asyncpg":
            raise
        raise StartError("PostgreSQL needs another package: pip install 'wattwise[server,postgres]'") from error
    return open_postgres(url, observer)
