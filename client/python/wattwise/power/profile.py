"""Profiling power limits during training: just-in-time profiling (You, Chung, Chowdhury, NSDI 2023, section 4)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from wattwise import v1
from wattwise.errors import MonitorError, log
from wattwise.monitor import Monitor
from wattwise.spec import cost
from wattwise.training.resume import joules_or_none

_EXPENSIVE_IN_A_ROW = 2
"""The cost over the limits has one minimum: after two limits in a row that cost more than the best, it is behind us."""

_SHORT_SECONDS = 0.5
"""NVIDIA's energy counters update 10 to 50 times a second: in much shorter measurements the noise dominates."""


def limits_between(lowest_watts: float, highest_watts: float, step_watts: float) -> list[float]:
    """Returns the limits to profile, from the highest downwards in equal steps; none is below the lowest."""
    count = int((highest_watts - lowest_watts) / step_watts + 1e-9) + 1
    return [highest_watts - number * step_watts for number in range(count)]


def cost_per_step(spec: v1.JobSpec, sample: v1.PowerSample) -> float:
    """Returns the cost `(η·average power + (1−η)·P)·time per step`, in joules; P is the max power of all GPUs."""
    return cost(spec, sample.time_seconds, sample.energy_joules) / sample.steps


class Walk:
    """Visits limits until two in a row cost more than the best, or none is left.

    Args:
        limits: in watts, in the order of the visits; at least one.
        cost: the cost of a sample's step.

    Attributes:
        samples: the samples so far, in order.
        best: the cheapest sample, and of equally cheap ones the lowest limit; None before the first.
    """

    def __init__(self, limits: Sequence[float], cost: Callable[[v1.PowerSample], float]) -> None:
        self.limits = tuple(limits)
        self._cost = cost
        self._expensive = 0
        self.samples: list[v1.PowerSample] = []
        self.best: v1.PowerSample | None = None

    @property
    def limit(self) -> float | None:
        """The limit to measure next, in watts; None when the walk is complete."""
        if self._expensive == _EXPENSIVE_IN_A_ROW or len(self.samples) == len(self.limits):
            return None
        return self.limits[len(self.samples)]

    def take(self, sample: v1.PowerSample) -> None:
        """Adds the sample of `limit`, which moves to the next one."""
        self.samples.append(sample)
        if self.best is None or self._rank(sample) < self._rank(self.best):
            self.best, self._expensive = sample, 0
        elif self._cost(sample) > self._cost(self.best):
            self._expensive += 1
        else:
            self._expensive = 0

    def _rank(self, sample: v1.PowerSample) -> tuple[float, float]:
        return self._cost(sample), sample.power_setting.limit_watts_per_gpu


class Profile:
    """Walks the limits during training: at each limit some warm-up steps, then the measured ones.

    The first limit is set at once. No other window of the monitor may have the name of these.

    Raises:
        MonitorError: if the limit cannot be set.
    """

    def __init__(
        self,
        walk: Walk,
        monitor: Monitor,
        window: str,
        *,
        warmup_iters: int,
        measure_iters: int,
        set_limit: Callable[[float], object],
    ) -> None:
        self.walk = walk
        self._monitor = monitor
        self._window = window
        self._window_is_open = False
        self._warmup_iters = warmup_iters
        self._measure_iters = measure_iters
        self._set_limit = set_limit
        self._has_warned = False
        self._start_limit()

    def begin_step(self) -> None:
        """Opens a window unless the step belongs to the warm-up.

        Raises:
            MonitorError: if the monitor fails.
        """
        if self._warmed_up >= self._warmup_iters and not self._window_is_open:
            self._monitor.begin_window(self._window)
            self._window_is_open = True

    def end_step(self) -> None:
        """Counts a step; after the last one at this limit, sets the next limit.

        Raises:
            MonitorError: if the monitor fails or measures nothing, or the next limit cannot be set.
        """
        if not self._window_is_open:
            self._warmed_up += 1
            return
        self._steps += 1
        if self._steps < self._measure_iters:
            return
        self.pause()
        limit, time, energy, steps = self.walk.limit, self._time, self._energy, self._steps
        if limit is None:
            return
        if not time > 0 or not energy >= 0:
            raise MonitorError(
                f"the monitor measured {time:g} s and {energy:g} J over {steps} steps, which is impossible"
            )
        if any(sample.HasField("energy_joules") != (energy > 0) for sample in self.walk.samples):
            # Without energy a limit would look cheap.
            raise MonitorError(
                f"the monitor measured {energy:g} J at the power limit {limit:g} W, but at other limits it measured "
                f"{'no energy' if energy else 'energy'}: the limits cannot be compared"
            )
        if time < _SHORT_SECONDS and not self._has_warned:
            self._has_warned = True
            log.info(
                "%d steps took only %.3g s, too short for the energy counters of most GPUs: raise "
                "profile_measure_iters until they take a second or more",
                *(steps, time),
            )
        log.info("power limit %g W: %.4g s and %.4g J per step", limit, time / steps, energy / steps)
        self.walk.take(
            v1.PowerSample(
                power_setting=v1.PowerSetting(limit_watts_per_gpu=limit),
                time_seconds=time,
                energy_joules=joules_or_none(energy),
                steps=steps,
            )
        )
        self._start_limit()

    def pause(self) -> None:
        """Closes the window until the next step begins: at the end of an epoch, or of the steps at a limit.

        Raises:
            MonitorError: if the monitor fails.
        """
        if self._window_is_open:
            self._window_is_open = False
            window = self._monitor.end_window(self._window)
            self._time += window.time
            self._energy += window.total_energy

    def _start_limit(self) -> None:
        self._warmed_up = self._steps = 0
        self._time = self._energy = 0.0
        if self.walk.limit is not None:
            self._set_limit(self.walk.limit)


@dataclass(frozen=True)
class ComputedUsage:
    """Time and energy of a trial's training steps at two power limits, computed from its profile: steps × per step.

    Nothing in here is measured; the trial's measurements are the server's.

    Attributes:
        steps: training steps so far, including those of the profile and excluding evaluations.
        limit_watts_per_gpu: the cheapest limit.
        time_seconds: time of all steps at the cheapest limit.
        energy_joules: energy of all steps at the cheapest limit, over all GPUs; None if the profile has no energy.
        highest_limit_watts_per_gpu: the highest limit, at which the trial trains.
        highest_time_seconds: time of all steps at the highest limit.
        highest_energy_joules: energy of all steps at the highest limit, over all GPUs; None like `energy_joules`.
    """

    steps: int
    limit_watts_per_gpu: float
    time_seconds: float
    energy_joules: float | None
    highest_limit_watts_per_gpu: float
    highest_time_seconds: float
    highest_energy_joules: float | None

    @classmethod
    def of(cls, steps: int, best: v1.PowerSample, highest: v1.PowerSample) -> ComputedUsage:
        """Returns the usage of this many steps, from the samples of the cheapest and the highest limit."""

        def usage(sample: v1.PowerSample) -> tuple[float, float, float | None]:
            share = steps / sample.steps
            joules = share * sample.energy_joules if sample.HasField("energy_joules") else None
            return sample.power_setting.limit_watts_per_gpu, share * sample.time_seconds, joules

        return cls(steps, *usage(best), *usage(highest))

    def __str__(self) -> str:
        return (
            f"computed from the profile, not measured: {self.steps} steps would take "
            f"{_text(self.time_seconds, self.energy_joules)} at {self.limit_watts_per_gpu:g} W, against "
            f"{_text(self.highest_time_seconds, self.highest_energy_joules)} at {self.highest_limit_watts_per_gpu:g} W"
        )


def _text(seconds: float, joules: float | None) -> str:
    return f"{seconds:.4g} s" if joules is None else f"{seconds:.4g} s and {joules:.4g} J"
