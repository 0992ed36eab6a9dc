"""The energy estimate of the demo."""

from __future__ import annotations

import time

import pytest
from wattwise.monitor import EnergyQuality, gpu_group, monitor_kinds

from examples.digits.monitor import ProcessorTimeMonitor


def test_waiting_costs_nothing() -> None:
    """A window that waits is hardly longer than the work in it, as if other programs had the processor."""
    monitor = ProcessorTimeMonitor(65)
    start = time.process_time()
    monitor.begin_window("epoch")
    time.sleep(0.2)
    sum(range(100_000))
    window = monitor.end_window("epoch")
    assert 0 < window.time <= time.process_time() - start
    assert window.total_energy == pytest.approx(65 * window.time)


def test_it_is_an_estimate() -> None:
    """Its energy is marked as an estimate, and its device says what it is."""
    monitor = ProcessorTimeMonitor(65)
    assert monitor_kinds(monitor).quality is EnergyQuality.ESTIMATED
    assert gpu_group(monitor).gpu_model == "estimate (65 W times processor time)"
