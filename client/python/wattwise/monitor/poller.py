"""A daemon thread that does one thing again and again."""

from __future__ import annotations

import threading
from collections.abc import Callable


class Poller:
    """Calls `action` every `period` seconds between `start` and `stop`.

    Neither waits for the other side, so that both may be called with a lock held that `action` takes; `action` may
    therefore run once more after `stop`.
    """

    def __init__(self, action: Callable[[], None], period: float) -> None:
        self._action = action
        self._period = period
        self._stopped: threading.Event | None = None

    def start(self) -> None:
        """Starts the calls, the first after one period; does nothing while they go on."""
        if self._stopped is not None:
            return
        self._stopped = threading.Event()
        threading.Thread(target=self._run, args=(self._stopped,), name="wattwise-poller", daemon=True).start()

    def stop(self) -> None:
        """Ends the calls; does nothing when there are none."""
        if self._stopped is not None:
            self._stopped.set()
            self._stopped = None

    def _run(self, stopped: threading.Event) -> None:
        while not stopped.wait(self._period):
            self._action()
