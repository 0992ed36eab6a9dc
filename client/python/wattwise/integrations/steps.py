"""Passes training steps on to a `PowerLimitOptimizer`."""

from __future__ import annotations

from typing import Protocol


class StepListener(Protocol):
    """An object to notify of training steps, such as a `PowerLimitOptimizer`."""

    def on_step_begin(self) -> None:
        """Notes that a step begins."""

    def on_step_end(self) -> None:
        """Notes that a step has ended."""

    def on_epoch_end(self) -> None:
        """Notes that the last step of an epoch has ended; the evaluation follows."""

    def close(self) -> None:
        """Notes that training is over."""


class StepNotifier:
    """Notifies a listener of steps and epochs, each once, in whatever order the trainer calls its hooks.

    A step is one update of the weights, whatever the number of batches that it accumulates.

    Args:
        listener: the listener; None ignores all steps.
    """

    def __init__(self, listener: StepListener | None) -> None:
        self._listener = listener
        self._in_step = False
        self._in_epoch = False

    def begin(self) -> None:
        """Begins a batch, and with it a step, unless one is under way."""
        if self._listener is not None and not self._in_step:
            self._in_step = self._in_epoch = True
            self._listener.on_step_begin()

    def end(self) -> None:
        """Ends the step."""
        if self._listener is not None and self._in_step:
            self._in_step = False
            self._listener.on_step_end()

    def end_epoch(self) -> None:
        """Ends the epoch, whose last step has ended now or before."""
        self.end()
        if self._listener is not None and self._in_epoch:
            self._in_epoch = False
            self._listener.on_epoch_end()

    def close(self) -> None:
        """Notes that training is over."""
        if self._listener is not None:
            self._listener.close()
