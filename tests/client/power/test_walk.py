"""The walk over power limits, and the steps that are measured at each."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from wattwise import v1
from wattwise.monitor import Window
from wattwise.power.stretch import Measured, Stretch
from wattwise.power.walk import Walk, cost_per_step, limits_between

SPEC = v1.JobSpec(eta_knob=1.0, gpu=v1.GpuConfig(max_power_watts=100))


def walked(costs: list[float]) -> Walk:
    """A walk to its end over as many limits as there are costs, from 1000 W downwards."""
    limits = [1000.0 - number for number in range(len(costs))]
    walk = Walk(limits, lambda sample: cost_per_step(SPEC, sample))
    while (limit := walk.limit) is not None:
        joules = costs[limits.index(limit)]
        walk.take(v1.PowerSample(power_limit_watts=limit, time_seconds=1, energy_joules=joules, steps=1))
    return walk


@given(st.lists(st.integers(0, 5).map(float), min_size=1, max_size=12))
def test_cheapest_visited_wins_and_no_limit_too_many_is_visited(costs: list[float]) -> None:
    """Whatever limits cost: the best is the lowest of the cheapest visited, and the walk ends where the rule says."""
    walk = walked(costs)
    count = len(walk.samples)
    seen = costs[:count]
    assert [sample.energy_joules for sample in walk.samples] == seen
    assert walk.best is not None
    assert walk.best.power_limit_watts == min(
        sample.power_limit_watts for sample in walk.samples if sample.energy_joules == min(seen)
    )
    # Written out anew: after which visits the two newest both cost more than the best so far.
    stops = [n for n in range(3, len(costs) + 1) if min(costs[n - 2 : n]) > min(costs[:n])]
    assert count == (stops[0] if stops else len(costs))


@pytest.mark.parametrize(
    ("costs", "visits"),
    [
        ([3, 2, 1, 2, 3, 0], 5),
        ([1, 2, 3, 0], 3),
        ([3, 4, 2, 3, 1, 2, 2], 7),
        ([1, 1, 1, 1], 4),
        ([1, 2, 1, 2, 2, 0], 5),
        ([7], 1),
    ],
)
def test_two_dearer_limits_in_a_row_end_the_walk(costs: list[int], visits: int) -> None:
    """One limit that costs more does not end the walk, nor does one that costs as much as the best."""
    assert len(walked([float(cost) for cost in costs]).samples) == visits


def test_limits_go_down_in_equal_steps() -> None:
    """From the highest limit downwards, never below the lowest."""
    assert limits_between(100, 250, 25) == [250, 225, 200, 175, 150, 125, 100]
    assert limits_between(110, 250, 50) == [250, 200, 150]
    assert limits_between(100, 100, 25) == [100]
    assert limits_between(0.3, 0.9, 0.1)[-1] == pytest.approx(0.3)


def test_cost_of_a_step() -> None:
    """(η·average power + (1−η)·P)·time per step, in joules."""
    spec = v1.JobSpec(eta_knob=0.25, gpu=v1.GpuConfig(max_power_watts=400))
    sample = v1.PowerSample(power_limit_watts=100, time_seconds=2, energy_joules=300, steps=10)
    assert cost_per_step(spec, sample) == pytest.approx((0.25 * 150 + 0.75 * 400) * 0.2)


class Counter:
    """A monitor that counts as it is told to; a second and ten joules at a time."""

    gpu_indices = (0,)

    def __init__(self) -> None:
        self.now = 0
        self._begun: int | None = None

    def begin_window(self, name: str) -> None:
        """Starts to measure."""
        assert self._begun is None, name
        self._begun = self.now

    def end_window(self, name: str) -> Window:
        """Ends what was begun."""
        assert self._begun is not None, name
        length, self._begun = self.now - self._begun, None
        return Window(time=float(length), total_energy=10.0 * length)


@given(st.integers(0, 4), st.integers(1, 6), st.lists(st.integers(1, 5), min_size=1, max_size=12))
def test_only_measured_steps_count(warmup: int, length: int, epochs: list[int]) -> None:
    """However epochs cut a stretch, it holds its measured steps and neither warm-up nor what is between epochs."""
    counter = Counter()
    stretch = Stretch(counter, "w", warmup, length)
    done: list[tuple[int, Measured]] = []
    steps = 0
    for epoch in epochs:
        for _ in range(epoch):
            stretch.begin_step()
            counter.now += 1
            steps += 1
            if (measured := stretch.end_step()) is not None:
                done.append((steps, measured))
        stretch.interrupt()
        counter.now += 1000
    whole = steps // (warmup + length)
    every = Measured(float(length), 10.0 * length, length)
    assert done == [((number + 1) * (warmup + length), every) for number in range(whole)]
