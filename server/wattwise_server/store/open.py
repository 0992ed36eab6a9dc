"""Opens the store of a database's URL."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager, contextmanager

from wattwise_server.clock import Clock
from wattwise_server.errors import StartError
from wattwise_server.observability.observers import NO_OBSERVERS, Observer
from wattwise_server.store.base import Migrated
from wattwise_server.store.sqlite.open import migrate_sqlite, open_sqlite
from wattwise_server.store.transactions import Store

# Unless what follows is no option, but the rest of a password.
_OPTIONS = re.compile("[?](?![^=&]*@)")
_HOST = r"(\[[^]]*\]|[^][:/,]*)(:\d*)?"
_HOSTS = re.compile(f"{_HOST}(,{_HOST})*(/.*)?")

POSTGRES_SCHEMES = ("postgresql://", "postgres://")


def is_shared(url: str) -> bool:
    """Returns whether a URL names a PostgreSQL, which any number of servers share."""
    return url.startswith(POSTGRES_SCHEMES)


def shown_url(url: str) -> str:
    """Returns a URL without its password."""
    if not is_shared(url):
        return url
    scheme, _, rest = url.partition("://")
    user, at, hosts = _OPTIONS.split(rest)[0].rpartition("@")
    if not at and not _HOSTS.fullmatch(hosts):
        # The password has characters that a URL must escape, or the host is missing.
        user, at, hosts = rest.rpartition("@")
        user, hosts = (user, _OPTIONS.split(hosts)[0]) if at else (hosts, "")
    name, colon, _ = user.partition(":")
    return f"{scheme}://{name}{':***' if colon else ''}{at}{hosts}"


def open_store(url: str, clock: Clock, observer: Observer = NO_OBSERVERS) -> AbstractAsyncContextManager[Store]:
    """Opens the store of a database, which is created or migrated first; the block's exit closes everything.

    Args:
        url: `sqlite:///FILE` or `postgresql://…`.
        clock: The time of a SQLite file's store; a PostgreSQL has its own.
        observer: Learns of every commit.

    Raises:
        StartError: the database cannot be opened, or is not one of Wattwise.
    """
    if not is_shared(url):
        return open_sqlite(url, clock, observer)
    with needs_asyncpg():
        from wattwise_server.store.postgres.open import open_postgres  # noqa: PLC0415 - the extra may be missing
    return open_postgres(url, shown_url(url), observer)


async def migrate(url: str) -> Migrated:
    """Creates or migrates a database.

    Raises:
        StartError: the database cannot be migrated, or is not one of Wattwise.
    """
    if not is_shared(url):
        return migrate_sqlite(url)
    with needs_asyncpg():
        from wattwise_server.store.postgres.open import migrate_postgres  # noqa: PLC0415 - the extra may be missing
    return await migrate_postgres(url, shown_url(url))


@contextmanager
def needs_asyncpg() -> Iterator[None]:
    """Wraps a block that imports asyncpg.

    Raises:
        StartError: it is not installed.
    """
    try:
        yield
    except ImportError as error:
        if error.name != "asyncpg":
            raise
        raise StartError("PostgreSQL needs another package: pip install 'wattwise[server,postgres]'") from error
