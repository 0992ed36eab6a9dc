"""Ctrl-C and its like: told once, they end the driver in order; told again, they end its command at once."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType


class InterruptedRunError(BaseException):
    """The driver was told to stop by a signal. No `Exception`, so that nothing takes it for a failure and goes on."""

    def __init__(self, number: int) -> None:
        super().__init__(f"stopped by {signal.Signals(number).name}")
        self.status = 128 + number


class Interruption:
    """Raises the first signal that asks the driver to stop where the main thread stands.

    Attributes:
        again: called for every later one.
    """

    def __init__(self) -> None:
        self.again: Callable[[], None] = lambda: None
        self._told = False

    def install(self) -> None:
        """Starts to heed Ctrl-C, SIGTERM and a closed terminal."""
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            # What is ignored stays ignored: that is how nohup works.
            if signal.getsignal(number) != signal.SIG_IGN:
                signal.signal(number, self._heed)

    def _heed(self, number: int, _frame: FrameType | None) -> None:
        if self._told:
            self.again()
            return
        self._told = True
        if _shield.depth:
            _shield.kept = number
        else:
            raise InterruptedRunError(number)


@dataclass
class _Shield:
    """How many blocks are being done that are not to be interrupted, and the signal that came meanwhile."""

    depth: int = 0
    kept: int = 0


_shield = _Shield()


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Lets signals wait until the main thread leaves the block, so that it is done whole.

    Blocking the signals would not do: the kernel gives them to another thread then, and Python to this one.
    """
    _shield.depth += 1
    try:
        yield
    finally:
        _shield.depth -= 1
    if _shield.kept and not _shield.depth:
        number, _shield.kept = _shield.kept, 0
        raise InterruptedRunError(number)
