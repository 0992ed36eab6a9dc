"""Measurement windows over GPUs of any vendor: energy counters, or integrated power without one."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import Protocol

from wattwise import rules
from wattwise.errors import ImplausibleError, MonitorError, Remedy, log
from wattwise.monitor import plausible
from wattwise.monitor.window import Reading, WindowMonitor
from wattwise.rules import GpuGroup

POLL_SECONDS = 0.1
# GPUs update their energy counters every 10 to 100 ms. In a shorter window a counter may not change, or by a whole step
# too much.
COUNTER_SECONDS = plausible.STEP_SECONDS


class MeasuredGpu(Protocol):
    """A GPU, as the library of its vendor shows it."""

    @property
    def name(self) -> str:
        """Its model."""

    @property
    def uuid(self) -> str:
        """Its unique identifier."""

    @property
    def has_energy_counter(self) -> bool:
        """Whether it counts energy."""

    def energy_joules(self) -> float:
        """Returns the joules since some moment before the first call."""

    def power_watts(self) -> float:
        """Returns the current power."""

    def max_power_watts(self) -> float:
        """Returns the highest power limit that can be set."""


class GpuMonitor(WindowMonitor):
    """Measures GPUs: the growth of their energy counters, summed.

    The energy is power times the window's length in windows shorter than 0.1 s, for which counters are too coarse, and
    if a counter did not change, which is logged once per GPU. The power of GPUs without a counter is read ten times a
    second while a window is open, and integrated. A counter that went backwards or jumped, and a power above twice the
    GPU's limit, are errors.

    Args:
        gpus: what to measure.
        gpu_indices: which of the visible GPUs these are; None if all.
        use_counter: False ignores counters.
    """

    def __init__(
        self, gpus: Sequence[MeasuredGpu], gpu_indices: Sequence[int] | None, *, use_counter: bool = True
    ) -> None:
        self._measured = list(gpus)
        self._counting = [gpu for gpu in gpus if use_counter and gpu.has_energy_counter]
        self._polled = [gpu for gpu in gpus if gpu not in self._counting]
        # A sum is only as good as its worst part.
        self.kind = f"{type(self).kind}-polled" if self._polled else type(self).kind
        # By UUID; infinite if the limit is unknown.
        self._most_watts = {gpu.uuid: _most_watts(gpu) for gpu in gpus}
        self._integral = PowerIntegral()
        self._warned_gpus: set[str] = set()
        indices = range(len(gpus)) if gpu_indices is None else gpu_indices
        super().__init__(indices, POLL_SECONDS if self._polled else None)
        try:
            self._read()  # raises here rather than in the first window
        except MonitorError as error:
            if len(gpus) < 2:
                raise
            raise MonitorError(error.problem, *dict.fromkeys([Remedy.SELECT_GPUS, *error.remedies])) from None

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{gpu.name} ({gpu.uuid})' for gpu in self._measured)})"

    @property
    def counts_energy(self) -> bool:
        """Whether some of the GPUs are measured by their energy counters."""
        return bool(self._counting)

    @property
    def max_power_watts(self) -> float | None:
        """Twice the power limits of the GPUs, in watts; None if one of them is unknown."""
        watts = math.fsum(self._most_watts.values())
        return watts if watts < math.inf else None

    def gpu_group(self) -> GpuGroup:
        """Returns the measured GPUs: their model, their number, and the highest power limit of one times their number.

        Raises:
            MonitorError: if they are of different models, or report no power limit.
        """
        return gpu_group_of(self._measured)

    def _read(self) -> Reading:
        now = time.monotonic()
        counted = [gpu.energy_joules() for gpu in self._counting]
        if self._polled:
            counted.append(self._integral.add(now, sum(map(self._power, self._polled))))
        return Reading(now, tuple(counted))

    def _joules(self, used: Sequence[float], seconds: float) -> float:
        counted = used[: len(self._counting)]
        return sum(map(self._checked, self._counting, counted, [seconds] * len(counted))) + sum(used[len(counted) :])

    def _checked(self, gpu: MeasuredGpu, joules: float, seconds: float) -> float:
        """Returns the GPU's energy, given the growth of its counter."""
        if joules < 0:
            raise ImplausibleError(
                f"the energy counter of {gpu.name} ({gpu.uuid}) went backwards: was the GPU or its kernel module reset?"
            )
        if joules > 0 and seconds >= COUNTER_SECONDS:
            if fault := plausible.power_fault(joules, seconds, self._most_watts[gpu.uuid], plausible.STEP_SECONDS):
                raise ImplausibleError(f"the energy counter of {gpu.name} ({gpu.uuid}) jumped: {fault}")
            return joules
        try:
            watts = self._power(gpu)
        except ImplausibleError:
            raise
        except MonitorError:
            return joules
        if seconds >= COUNTER_SECONDS:
            self._warn_once(gpu)
        return watts * seconds

    def _power(self, gpu: MeasuredGpu) -> float:
        """Returns the GPU's current power."""
        watts = gpu.power_watts()
        if not 0 <= watts <= self._most_watts[gpu.uuid]:
            limit = self._most_watts[gpu.uuid] / rules.POWER_FACTOR
            raise ImplausibleError(
                f"{gpu.name} ({gpu.uuid}) reports a power of {watts:g} W, with a limit of {limit:g} W"
            )
        return watts

    def _warn_once(self, gpu: MeasuredGpu) -> None:
        if gpu.uuid not in self._warned_gpus:
            self._warned_gpus.add(gpu.uuid)
            log.warning(
                "The energy counter of %s (%s) does not change: was the GPU or its kernel module reset? In such "
                "windows its energy is its power at the end times the length of the window (logged once).",
                gpu.name,
                gpu.uuid,
            )


def _most_watts(gpu: MeasuredGpu) -> float:
    try:
        return rules.POWER_FACTOR * gpu.max_power_watts()
    except MonitorError:
        return math.inf


class PowerIntegral:
    """Energy from samples of power: ∫ P dt by trapezoids."""

    def __init__(self) -> None:
        self._last: tuple[float, float] | None = None
        self._joules = 0.0

    def add(self, time: float, watts: float) -> float:
        """Adds a sample, which is not older than the last one; returns joules since the first one."""
        if self._last is not None:
            last_time, last_watts = self._last
            self._joules += (time - last_time) * (last_watts + watts) / 2
        self._last = (time, watts)
        return self._joules


def gpu_group_of(gpus: Sequence[MeasuredGpu]) -> GpuGroup:
    """Returns these GPUs, at least one, for the specification of a job.

    Raises:
        MonitorError: if they are of different models, or report no power limit.
    """
    models = sorted({gpu.name for gpu in gpus})
    if len(models) > 1:
        raise MonitorError(
            f"the GPUs are of different models ({', '.join(models)}), whose costs cannot be compared",
            Remedy.SELECT_GPUS,
        )
    watts = max(gpu.max_power_watts() for gpu in gpus)
    return GpuGroup(gpu_model=models[0], count=len(gpus), max_power_watts_per_gpu=watts)
