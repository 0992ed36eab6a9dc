"""EstimateMonitor, and the named windows that all monitors share."""

from __future__ import annotations

import math
import os
import time
from typing import Any

import pytest
from wattwise.errors import MonitorError
from wattwise.monitor import EstimateMonitor, gpu_group
from wattwise.rules import GpuGroup


class Machine:
    """A machine with four processors, whose clock and load are set by the test."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = self.load = 0.0
        monkeypatch.setattr(os, "cpu_count", lambda: 4)
        monkeypatch.setattr(os, "getloadavg", lambda: (self.load, 0.0, 0.0))
        monkeypatch.setattr(time, "monotonic", lambda: self.now)

    def train(self, monitor: EstimateMonitor, seconds: float, load: float) -> None:
        """Measures a window at whose end the machine has this load."""
        monitor.begin_window("epoch")
        self.now += seconds
        self.load = load
        monitor.end_window("epoch")


def test_energy_is_power_times_time() -> None:
    """A window's energy is `watts` times its length, which is at least the time slept within it."""
    monitor = EstimateMonitor(watts=150)
    monitor.begin_window("epoch")
    time.sleep(0.05)
    window = monitor.end_window("epoch")
    assert window.time >= 0.05
    assert window.total_energy == pytest.approx(150 * window.time)


def test_windows_nest_and_overlap() -> None:
    """Windows with different names may overlap, and an outer one is not shorter than an inner one."""
    monitor = EstimateMonitor(watts=1)
    monitor.begin_window("whole")
    monitor.begin_window("part")
    part = monitor.end_window("part")
    assert monitor.end_window("whole").time >= part.time


def test_a_name_can_be_used_again() -> None:
    """An ended window's name can be used again, and its time does not count in the next window."""
    monitor = EstimateMonitor(watts=1)
    monitor.begin_window("epoch")
    time.sleep(0.05)
    monitor.end_window("epoch")
    before = time.monotonic()
    monitor.begin_window("epoch")
    window = monitor.end_window("epoch")
    assert window.time <= time.monotonic() - before


def test_a_window_begun_twice() -> None:
    """A second window with the name of an open one is refused, and the first one stays open."""
    monitor = EstimateMonitor(watts=1)
    monitor.begin_window("epoch")
    with pytest.raises(MonitorError, match="'epoch' is already open"):
        monitor.begin_window("epoch")
    assert monitor.end_window("epoch").time >= 0


def test_a_window_that_was_not_begun() -> None:
    """Ending a window that is not open is refused."""
    with pytest.raises(MonitorError, match="'epoch' is not open"):
        EstimateMonitor(watts=1).end_window("epoch")


def test_estimate_is_named() -> None:
    """Kind, repr and GPU model name the estimate, and it has no GPUs."""
    monitor = EstimateMonitor(watts=150)
    assert monitor.kind == "estimate"
    assert repr(monitor) == "EstimateMonitor(watts=150)"
    assert gpu_group(monitor) == GpuGroup(gpu_model="estimate (150 W)", count=1, max_power_watts_per_gpu=150.0)
    assert monitor.gpu_indices == []


@pytest.mark.parametrize("watts", [0, -1, math.nan, math.inf, "65", None])
def test_watts_must_be_a_power(watts: Any) -> None:
    """A power that is not a finite number above 0 is refused."""
    with pytest.raises(MonitorError, match=f"watts={watts!r}"):
        EstimateMonitor(watts=watts)


def test_loaded_machine(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """A load above the number of processors is logged once per monitor, with both numbers."""
    machine, monitor = Machine(monkeypatch), EstimateMonitor(watts=150)
    for load in (4.0, 4.5, 9.0):
        machine.train(monitor, seconds=60, load=load)
    (message,) = caplog.messages
    assert "4.5, with 4 processors" in message


def test_load_of_short_windows(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """The load at the end of a short window is that from before, and is not logged."""
    machine, monitor = Machine(monkeypatch), EstimateMonitor(watts=150)
    machine.train(monitor, seconds=9, load=100)
    assert caplog.messages == []
    machine.train(monitor, seconds=10, load=100)
    assert len(caplog.messages) == 1


def test_machine_without_a_load_average(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """Where the system has no load average, nothing is logged."""
    machine, monitor = Machine(monkeypatch), EstimateMonitor(watts=150)
    monkeypatch.delattr(os, "getloadavg")
    machine.train(monitor, seconds=60, load=100)
    assert caplog.messages == []
