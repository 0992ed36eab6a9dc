"""What holds on every NVIDIA GPU: run over the stub of NVIDIA's library always, and on a real one by `make test-gpu`.

Each case measures and asserts; none knows which of the two it runs on. All take GPU 0 and a load to put on it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import pytest
from wattwise.errors import MonitorError
from wattwise.monitor import NvmlMonitor, gpu_config
from wattwise.monitor.gpu_monitor import COUNTER_SECONDS

Load: TypeAlias = Callable[[float], object]
"""Keeps the GPU as busy as it can for so many seconds."""


class Comparison(NamedTuple):
    """The same load by the energy counter and by its power, in joules."""

    counted: float
    polled: float
    seconds: float


def case_units(load: Load) -> None:
    """The mean power is one that a GPU can have: a unit mistaken is off by a thousand."""
    monitor = NvmlMonitor([0])
    limit = gpu_config(monitor).max_power_watts
    assert 15 < limit < 3000
    monitor.begin_window("epoch")
    load(1.0)
    window = monitor.end_window("epoch")
    assert 1.0 <= window.time < 60
    assert 0.01 * limit < window.total_energy / window.time < 1.5 * limit


def case_comparison(load: Load, seconds: float, tolerance: float) -> Comparison:
    """Counter and polled power agree on the same load, within the tolerance."""
    counter, power = NvmlMonitor([0]), NvmlMonitor([0], use_counter=False)
    if not counter.counts_energy:
        pytest.skip("this GPU has no energy counter to compare its power with")
    load(min(2.0, seconds / 2))  # what a power reading averages over
    power.begin_window("epoch")
    counter.begin_window("epoch")
    load(seconds)
    counted, polled = counter.end_window("epoch"), power.end_window("epoch")
    result = Comparison(counted.total_energy, polled.total_energy, counted.time)
    assert result.polled == pytest.approx(result.counted, rel=tolerance)
    return result


def case_nested_windows(load: Load) -> None:
    """Windows within a window add up to it, as far as the counter's steps let them."""
    monitor = NvmlMonitor([0])
    monitor.begin_window("whole")
    parts = []
    for _ in range(3):
        monitor.begin_window("part")
        load(0.4)
        parts.append(monitor.end_window("part"))
    whole = monitor.end_window("whole")
    assert sum(part.time for part in parts) <= whole.time
    watts = whole.total_energy / whole.time
    # Between two windows nothing much is used, and each end may miss a step.
    steps = (len(parts) + 1) * COUNTER_SECONDS
    assert sum(part.total_energy for part in parts) == pytest.approx(watts * whole.time, abs=watts * steps)


def case_short_windows(load: Load) -> None:
    """Windows too short for the counter add up to about what it counts: no step is missed or counted twice."""
    monitor = NvmlMonitor([0])
    load(1.0)
    monitor.begin_window("whole")
    steps = []
    for _ in range(40):
        monitor.begin_window("step")
        load(0.02)
        steps.append(monitor.end_window("step"))
    whole = monitor.end_window("whole")
    watts = sum(step.total_energy for step in steps) / sum(step.time for step in steps)
    assert watts == pytest.approx(whole.total_energy / whole.time, rel=0.4)


def case_names() -> None:
    """Names that are open and names that are not are refused by name."""
    monitor = NvmlMonitor([0])
    with pytest.raises(MonitorError, match="'epoch' is not open"):
        monitor.end_window("epoch")
    monitor.begin_window("epoch")
    with pytest.raises(MonitorError, match="'epoch' is already open"):
        monitor.begin_window("epoch")
    monitor.end_window("epoch")


def case_visible_by_uuid() -> None:
    """CUDA_VISIBLE_DEVICES with a GPU's UUID shows that GPU alone."""
    uuid = repr(NvmlMonitor([0])).rpartition("(")[2].rstrip(")")
    os.environ["CUDA_VISIBLE_DEVICES"] = uuid
    monitor = NvmlMonitor()
    assert monitor.gpu_indices == [0]
    assert uuid in repr(monitor)
