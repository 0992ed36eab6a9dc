"""What a trial has used so far: the sum over the measurement windows of its epochs."""

from __future__ import annotations

from wattwise.monitor import Monitor


class TrainingWindows:
    """Adds up one window after another.

    Args:
        monitor: the energy meter.
        name: what its windows are called; no other window of the meter may have this name.

    Attributes:
        time_seconds: length of all closed windows.
        energy_joules: energy within them.
    """

    def __init__(self, monitor: Monitor, name: str) -> None:
        self._monitor = monitor
        self._name = name
        self.time_seconds = 0.0
        self.energy_joules = 0.0

    def open(self) -> None:
        """Starts the next window.

        Raises:
            MonitorError: if the meter cannot be read.
        """
        self._monitor.begin_window(self._name)

    def close(self) -> None:
        """Ends the window and counts it.

        Raises:
            MonitorError: if the meter cannot be read.
        """
        measured = self._monitor.end_window(self._name)
        self.time_seconds += measured.time
        self.energy_joules += measured.total_energy
