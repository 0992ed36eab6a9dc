"""Measures some steps of a training, after some that are not measured, and nothing of what happens between epochs."""

from __future__ import annotations

from typing import NamedTuple

from wattwise.monitor import Monitor


class Measured(NamedTuple):
    """What the measured steps took: seconds, joules as the monitor measures them, and how many they were."""

    time_seconds: float
    energy_joules: float
    steps: int


class Stretch:
    """One stretch of steps after another, in windows that can be interrupted.

    Args:
        monitor: the energy monitor of the GPUs.
        name: what the windows are called; no other window of the monitor may have this name.
        warmup: steps at the beginning of each stretch that are not measured.
        length: steps that are.
    """

    def __init__(self, monitor: Monitor, name: str, warmup: int, length: int) -> None:
        self._monitor = monitor
        self._name = name
        self._warmup = warmup
        self._length = length
        self._warmed = 0
        self._open = False
        self._so_far = Measured(0.0, 0.0, 0)

    def begin_step(self) -> None:
        """A step begins.

        Raises:
            MonitorError: if the monitor cannot be read.
        """
        if self._warmed >= self._warmup and not self._open:
            self._monitor.begin_window(self._name)
            self._open = True

    def end_step(self) -> Measured | None:
        """A step has ended.

        Returns:
            What the stretch took, if it ends with this step; the next one begins then.

        Raises:
            MonitorError: if the monitor cannot be read.
        """
        if not self._open:
            self._warmed += 1
            return None
        self._so_far = self._so_far._replace(steps=self._so_far.steps + 1)
        if self._so_far.steps < self._length:
            return None
        self.interrupt()
        whole, self._so_far, self._warmed = self._so_far, Measured(0.0, 0.0, 0), 0
        return whole

    def interrupt(self) -> None:
        """What follows is no training; the stretch goes on with the next step that begins.

        Raises:
            MonitorError: if the monitor cannot be read.
        """
        if not self._open:
            return
        self._open = False
        measured = self._monitor.end_window(self._name)
        time, energy, steps = self._so_far
        self._so_far = Measured(time + measured.time, energy + measured.total_energy, steps)
