"""The memory of a process."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing_extensions import Self


def resident(pid: int) -> float:
    """Resident memory in megabytes."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * 4096 / 1e6


class Peak:
    """By how much a process grows at most in a block.

    Attributes:
        grown: megabytes, known after the block.
    """

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._over = threading.Event()
        self.grown = 0.0

    def __enter__(self) -> Self:
        self._before = self._largest = resident(self._pid)
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._over.set()
        self._thread.join()
        self.grown = max(self._largest, resident(self._pid)) - self._before

    def _watch(self) -> None:
        while not self._over.wait(0.02):
            self._largest = max(self._largest, resident(self._pid))
