"""Ctrl-C, SIGTERM and SIGHUP: the first ends the driver in order, later ones kill its command."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType


class InterruptedRunError(BaseException):
    """A signal ended the run. Not an `Exception`, so that no handler of failures catches it."""

    def __init__(self, number: int) -> None:
        super().__init__(f"stopped by {signal.Signals(number).name}")
        self.status = 128 + number


class Interruption:
    """Raises `InterruptedRunError` in the main thread at the first signal.

    Attributes:
        on_repeat: called at every later signal.
    """

    def __init__(self) -> None:
        self.on_repeat: Callable[[], None] = lambda: None
        self._received = False

    def install(self) -> None:
        """Handles SIGINT, SIGTERM and SIGHUP from now on."""
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            # What is ignored stays ignored: that is how nohup works.
            if signal.getsignal(number) != signal.SIG_IGN:
                signal.signal(number, self._handle)

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        if self._received:
            self.on_repeat()
            return
        self._received = True
        if _shield.depth:
            _shield.pending = number
        else:
            raise InterruptedRunError(number)


@dataclass
class _Shield:
    """The number of open `uninterrupted` blocks, and the signal that arrived within them."""

    depth: int = 0
    pending: int = 0


_shield = _Shield()


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Defers signals until the main thread leaves the block.

    Signals are not masked: the kernel would deliver them to another thread, and Python to this one.
    """
    _shield.depth += 1
    try:
        yield
    finally:
        _shield.depth -= 1
    if _shield.pending and not _shield.depth:
        number, _shield.pending = _shield.pending, 0
        raise InterruptedRunError(number)
