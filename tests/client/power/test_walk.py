"""The walk over power limits, and the steps measured at each."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from wattwise import v1
from wattwise.errors import MonitorError
from wattwise.monitor import Window
from wattwise.power.profile import ComputedUsage, Profile, Walk, cost_per_step, limits_between

SPEC = v1.JobSpec(eta_knob=1.0, gpus=[v1.GpuGroup(count=1, max_power_watts_per_gpu=100)])


def walked(costs: list[float]) -> Walk:
    """A complete walk over one limit for each cost, from 1000 W downwards."""
    limits = [1000.0 - number for number in range(len(costs))]
    walk = Walk(limits, lambda sample: cost_per_step(SPEC, sample))
    while (limit := walk.limit) is not None:
        joules = costs[limits.index(limit)]
        walk.take(
            v1.PowerSample(
                power_setting=v1.PowerSetting(limit_watts_per_gpu=limit), time_seconds=1, energy_joules=joules, steps=1
            )
        )
    return walk


@given(st.lists(st.integers(0, 5).map(float), min_size=1, max_size=12))
def test_cheapest_limit_wins_and_the_walk_ends_early(costs: list[float]) -> None:
    """For any costs: the best is the lowest of the cheapest visited limits, and the walk ends where the rule says."""
    walk = walked(costs)
    count = len(walk.samples)
    seen = costs[:count]
    assert [sample.energy_joules for sample in walk.samples] == seen
    assert walk.best is not None
    assert walk.best.power_setting.limit_watts_per_gpu == min(
        sample.power_setting.limit_watts_per_gpu for sample in walk.samples if sample.energy_joules == min(seen)
    )
    # The rule, restated: after which visits the two newest both cost more than the best so far.
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
def test_two_more_expensive_limits_in_a_row_end_the_walk(costs: list[int], visits: int) -> None:
    """A single limit that costs more does not end the walk, nor does one that costs as much as the best."""
    assert len(walked([float(cost) for cost in costs]).samples) == visits


def test_limits_go_down_in_equal_steps() -> None:
    """From the highest limit downwards, never below the lowest."""
    assert limits_between(100, 250, 25) == [250, 225, 200, 175, 150, 125, 100]
    assert limits_between(110, 250, 50) == [250, 200, 150]
    assert limits_between(100, 100, 25) == [100]
    assert limits_between(0.3, 0.9, 0.1)[-1] == pytest.approx(0.3)


def test_cost_of_a_step() -> None:
    """(η·average power + (1−η)·P)·time per step, in joules."""
    spec = v1.JobSpec(eta_knob=0.25, gpus=[v1.GpuGroup(count=4, max_power_watts_per_gpu=100)])
    sample = v1.PowerSample(
        power_setting=v1.PowerSetting(limit_watts_per_gpu=100), time_seconds=2, energy_joules=300, steps=10
    )
    assert cost_per_step(spec, sample) == pytest.approx((0.25 * 150 + 0.75 * 400) * 0.2)


class Counter:
    """A monitor that measures one second and ten joules for each count."""

    gpu_indices = (0,)

    def __init__(self) -> None:
        self.now = 0
        self._begun: int | None = None

    def begin_window(self, name: str) -> None:
        """Opens the window."""
        assert self._begun is None, name
        self._begun = self.now

    def end_window(self, name: str) -> Window:
        """Closes the window."""
        assert self._begun is not None, name
        length, self._begun = self.now - self._begun, None
        return Window(time=float(length), total_energy=10.0 * length)


@given(st.integers(0, 4), st.integers(1, 6), st.lists(st.integers(1, 5), min_size=1, max_size=12))
def test_only_measured_steps_count(warmup: int, length: int, epochs: list[int]) -> None:
    """However epochs split the steps at a limit, its sample has neither warm-up steps nor time between epochs."""
    counter = Counter()
    limits = [float(watts) for watts in range(100, 39, -1)]
    set_limits: list[float] = []
    profile = Profile(
        Walk(limits, lambda _: 1.0),
        counter,
        "w",
        warmup_iters=warmup,
        measure_iters=length,
        set_limit=set_limits.append,
    )
    done: list[int] = []
    steps = 0
    for epoch in epochs:
        for _ in range(epoch):
            profile.begin_step()
            counter.now += 1
            steps += 1
            profile.end_step()
            if len(profile.walk.samples) > len(done):
                done.append(steps)
        profile.pause()
        counter.now += 1000
    whole = steps // (warmup + length)
    assert done == [(number + 1) * (warmup + length) for number in range(whole)]
    assert set_limits == limits[: whole + 1]
    samples = [
        (s.power_setting.limit_watts_per_gpu, s.time_seconds, s.energy_joules, s.steps) for s in profile.walk.samples
    ]
    assert samples == [(watts, length, 10.0 * length, length) for watts in limits[:whole]]


class FailingCounter(Counter):
    """A counter that measures no energy after its first windows."""

    def __init__(self, measured: int) -> None:
        super().__init__()
        self._measured = measured

    def end_window(self, name: str) -> Window:
        """Closes the window."""
        window = super().end_window(name)
        self._measured -= 1
        return window if self._measured >= 0 else Window(time=window.time, total_energy=0.0)


@pytest.mark.parametrize("measured", [1, 3])
def test_limit_without_energy_is_not_the_cheapest(measured: int) -> None:
    """A limit at which no energy was measured cannot be compared with others, and ends the profile."""
    counter = FailingCounter(measured)
    profile = Profile(
        Walk([100.0, 90.0, 80.0, 70.0, 60.0], lambda _: 1.0),
        counter,
        "w",
        warmup_iters=0,
        measure_iters=1,
        set_limit=lambda _: None,
    )

    def step() -> None:
        profile.begin_step()
        counter.now += 1
        profile.end_step()

    for _ in range(measured):
        step()
    with pytest.raises(MonitorError, match=r"0 J at the power limit \d+ W, but at other limits it measured energy"):
        step()
    assert len(profile.walk.samples) == measured


def test_profile_without_energy() -> None:
    """If no energy is measured at any limit, none is reported."""
    counter = FailingCounter(0)
    profile = Profile(
        Walk([100.0, 90.0], lambda _: 1.0), counter, "w", warmup_iters=0, measure_iters=1, set_limit=lambda _: None
    )
    for _ in range(2):
        profile.begin_step()
        counter.now += 1
        profile.end_step()
    assert [sample.HasField("energy_joules") for sample in profile.walk.samples] == [False, False]


def test_computed_usage_without_energy() -> None:
    """Without the energy of the profile, the usage is that of the time alone."""
    highest, best = (
        v1.PowerSample(power_setting=v1.PowerSetting(limit_watts_per_gpu=watts), time_seconds=seconds, steps=10)
        for watts, seconds in ((250.0, 2.0), (200.0, 1.0))
    )
    usage = ComputedUsage.of(100, best, highest)
    assert (usage.time_seconds, usage.energy_joules) == (10.0, None)
    assert (usage.highest_time_seconds, usage.highest_energy_joules) == (20.0, None)
    assert " J" not in str(usage)
