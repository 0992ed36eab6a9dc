"""A caller beside whom others misbehave."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing_extensions import Self

PAUSE_SECONDS = 0.01


class Victim:
    """Makes a call again and again for the length of a block, and measures how long each takes.

    Args:
        call: The call; what it raises ends the block.

    Attributes:
        seconds: How long each call took.
    """

    def __init__(self, call: Callable[[], object]) -> None:
        self._call = call
        self._over = threading.Event()
        self._error: Exception | None = None
        self.seconds: list[float] = []

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self._suffer, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._over.set()
        self._thread.join()
        if self._error is not None:
            raise self._error

    @property
    def p99(self) -> float:
        """What 99 percent of the calls took at most, in milliseconds."""
        return 1e3 * sorted(self.seconds)[int(0.99 * len(self.seconds))]

    def _suffer(self) -> None:
        while not self._over.wait(PAUSE_SECONDS):
            start = time.perf_counter()
            try:
                self._call()
            except Exception as error:  # noqa: BLE001 - raised where the block ends
                self._error = error
                return
            self.seconds.append(time.perf_counter() - start)
