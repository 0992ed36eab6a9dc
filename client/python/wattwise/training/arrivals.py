"""The arrival of all ranks at a call that every rank must make, with a warning about those that are missing."""

from __future__ import annotations

import contextlib
import threading
import time
import weakref
from collections.abc import Iterator
from typing import Any

from wattwise.errors import log

WARN_SECONDS = 30.0
"""How long a rank waits for the others before it logs a warning."""

_LONGEST_PAUSE = 0.25


class Arrivals:
    """The calls at which each rank of a process group has arrived, in the group's store.

    The ranks enter a collective operation only after all have arrived at the same call: before, it could pair with an
    operation of the training.

    Args:
        store: the store of the group. It is not kept alive: PyTorch must be able to close it when the group is
            destroyed, before the process exits.
        rank: this process.
        size: the number of ranks.
    """

    def __init__(self, store: Any, rank: int, size: int) -> None:
        self._store = weakref.ref(store)
        self._rank, self._size = rank, size
        self._number, self._call = 0, ""

    @property
    def store(self) -> Any:
        """The store, or None once it is closed."""
        return self._store()

    def enter(self, call: str) -> None:
        """Marks this rank as arrived at its next call."""
        self._number, self._call = self._number + 1, call
        self.store.set(self._mark(self._rank), self._here)
        self.store.add(self._here, 1)

    def wait(self) -> None:
        """Waits until all ranks have arrived.

        Returns earlier if a rank has ended, and after the warning: then only the operation that follows notices whether
        a rank has died.
        """
        began = time.monotonic()
        while self.store.add(self._here, 0) < self._size and not self.store.add(_ENDED, 0):
            waited = time.monotonic() - began
            if waited >= WARN_SECONDS:
                missing = ", ".join(map(str, self._missing()))
                if missing:
                    log.warning("waiting for ranks %s; every rank must call %s", missing, self._call)
                return
            # At most a twentieth of the wait is added to it, and few requests reach a store with many ranks.
            time.sleep(min(waited / 20, _LONGEST_PAUSE))

    def end(self) -> None:
        """Tells the other ranks that this one has ended."""
        self.store.add(_ENDED, 1)

    @property
    def _here(self) -> str:
        return f"wattwise/{self._number}/{self._call}"

    def _mark(self, rank: int) -> str:
        return f"wattwise/rank/{rank}"

    def _missing(self) -> list[int]:
        marks = {rank: self._mark(rank) for rank in range(self._size)}
        here = self._here.encode()
        return [rank for rank, mark in marks.items() if not (self.store.check([mark]) and self.store.get(mark) == here)]


_ENDED = "wattwise/ended"


@contextlib.contextmanager
def warned(call: str) -> Iterator[None]:
    """Logs a warning if the block, which waits for other ranks, takes long; which ranks are missing is unknown."""

    def warn() -> None:
        log.warning(
            "waiting for other ranks; every rank must call %s (their connection does not show which have not)", call
        )

    timer = threading.Timer(WARN_SECONDS, warn)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
