"""Tells of every training step whoever trains at the cheapest power limit."""

from __future__ import annotations

from typing import Protocol


class StepListener(Protocol):
    """What is told of the steps of a training, such as a `PowerLimitOptimizer`."""

    def on_step_begin(self) -> None:
        """A step begins."""

    def on_step_end(self) -> None:
        """A step has ended."""

    def on_epoch_end(self) -> None:
        """An epoch's last step has ended; its evaluation follows."""

    def close(self) -> None:
        """The training is over."""


class Steps:
    """Tells of steps and epochs, each once, however the trainer's hooks come.

    A step is one update of the weights, whatever number of batches it is accumulated from.

    Args:
        listener: who is told; None if nobody is.
    """

    def __init__(self, listener: StepListener | None) -> None:
        self._listener = listener
        self._in_step = False
        self._in_epoch = False

    def begin(self) -> None:
        """A batch begins, and a step with it unless one is under way."""
        if self._listener is not None and not self._in_step:
            self._in_step = self._in_epoch = True
            self._listener.on_step_begin()

    def end(self) -> None:
        """The step has ended."""
        if self._listener is not None and self._in_step:
            self._in_step = False
            self._listener.on_step_end()

    def end_epoch(self) -> None:
        """The epoch's last step has ended, as of now or before."""
        self.end()
        if self._listener is not None and self._in_epoch:
            self._in_epoch = False
            self._listener.on_epoch_end()

    def close(self) -> None:
        """The training is over."""
        if self._listener is not None:
            self._listener.close()
