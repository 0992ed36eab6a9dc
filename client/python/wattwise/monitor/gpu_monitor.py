"""Windows over GPUs, whoever made them: energy counters where there are any, integrated power elsewhere."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from typing import Protocol

from wattwise.errors import MonitorError
from wattwise.monitor.window import Reading, WindowMonitor
from wattwise.spec import GpuConfig

POLL_SECONDS = 0.1
# Energy counters are brought up to date every 10 to 100 ms, depending on the GPU. Within so short a window one counts
# nothing, or a whole step too much.
COUNTER_SECONDS = 0.1
_logger = logging.getLogger(__name__)


class MeasuredGpu(Protocol):
    """A GPU as its maker's library shows it."""

    @property
    def name(self) -> str:
        """Its model."""

    @property
    def uuid(self) -> str:
        """What no other GPU is called."""

    @property
    def has_energy_counter(self) -> bool:
        """Whether it counts energy itself."""

    def energy_joules(self) -> float:
        """Joules since some moment before it was first asked."""

    def power_watts(self) -> float:
        """Watts that it draws now."""

    def max_power_watts(self) -> float:
        """The highest power limit that it may be set to."""


class GpuMonitor(WindowMonitor):
    """Measures GPUs: the growth of their energy counters, summed.

    Where a counter cannot tell, power times the window's length takes its place: in windows shorter than 0.1 s, which
    counters are too coarse for, and when one was reset or stands still, which is logged once per GPU. The power of GPUs
    without a counter is read ten times a second while a window is open, and integrated.

    Args:
        gpus: What to measure.
        gpu_indices: Which of the visible GPUs these are.
        use_counter: False takes no notice of counters.
    """

    def __init__(self, gpus: Sequence[MeasuredGpu], gpu_indices: Sequence[int], *, use_counter: bool = True) -> None:
        self._measured = list(gpus)
        self._counting = [gpu for gpu in gpus if use_counter and gpu.has_energy_counter]
        self._polled = [gpu for gpu in gpus if gpu not in self._counting]
        # A sum is no better than its worst part.
        self.kind = f"{type(self).kind}-polled" if self._polled else type(self).kind
        self._integral = PowerIntegral()
        self._doubted: set[str] = set()
        super().__init__(gpu_indices=gpu_indices, poll_seconds=POLL_SECONDS if self._polled else None)
        self._read()  # refuses here what cannot be read, rather than in the first window

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{gpu.name} ({gpu.uuid})' for gpu in self._measured)})"

    @property
    def counts_energy(self) -> bool:
        """Whether some of the GPUs are measured by an energy counter of their own."""
        return bool(self._counting)

    def gpu_config(self) -> GpuConfig:
        """The measured GPUs: their model, their number, and the highest power limit of one times their number.

        Raises:
            MonitorError: They are of different models, or tell no power limit.
        """
        return gpu_config_of(self._measured)

    def _read(self) -> Reading:
        now = time.monotonic()
        counted = [gpu.energy_joules() for gpu in self._counting]
        if self._polled:
            counted.append(self._integral.add(now, sum(gpu.power_watts() for gpu in self._polled)))
        return Reading(now, tuple(counted))

    def _joules(self, used: Sequence[float], seconds: float) -> float:
        counted = used[: len(self._counting)]
        return sum(map(self._checked, self._counting, counted, [seconds] * len(counted))) + sum(used[len(counted) :])

    def _checked(self, gpu: MeasuredGpu, joules: float, seconds: float) -> float:
        """What the GPU used, given by how much its counter grew."""
        if joules > 0 and seconds >= COUNTER_SECONDS:
            return joules
        try:
            watts = gpu.power_watts()
        except MonitorError as error:
            if joules >= 0:
                return joules
            raise MonitorError(f"the energy counter of {gpu.name} ({gpu.uuid}) went backwards, and {error}") from error
        if joules < 0 or seconds >= COUNTER_SECONDS:
            self._warn(gpu, "went backwards" if joules < 0 else "stands still")
        return watts * seconds

    def _warn(self, gpu: MeasuredGpu, what: str) -> None:
        if gpu.uuid not in self._doubted:
            self._doubted.add(gpu.uuid)
            _logger.warning(
                "The energy counter of %s (%s) %s: was the GPU or its driver reset? Windows in which it does count as "
                "its power at their end times their length (said once).",
                gpu.name,
                gpu.uuid,
                what,
            )


class PowerIntegral:
    """Energy from samples of power: ∫ P dt by trapezoids."""

    def __init__(self) -> None:
        self._last: tuple[float, float] | None = None
        self._joules = 0.0

    def add(self, time: float, watts: float) -> float:
        """Takes a sample.

        Args:
            time: Seconds; not before the sample before.
            watts: The power at that time.

        Returns:
            Joules since the first sample.
        """
        if self._last is not None:
            last_time, last_watts = self._last
            self._joules += (time - last_time) * (last_watts + watts) / 2
        self._last = (time, watts)
        return self._joules


def gpu_config_of(gpus: Sequence[MeasuredGpu]) -> GpuConfig:
    """What a job's specification says of these GPUs.

    Args:
        gpus: At least one.

    Raises:
        MonitorError: They are of different models, or tell no power limit.
    """
    models = sorted({gpu.name for gpu in gpus})
    if len(models) > 1:
        raise MonitorError(
            f"the GPUs are of different models ({', '.join(models)}), whose costs cannot be compared; choose GPUs of "
            "one model with gpu_indices or CUDA_VISIBLE_DEVICES"
        )
    watts = max(gpu.max_power_watts() for gpu in gpus) * len(gpus)
    return GpuConfig(max_power_watts=watts, number_of_gpus=len(gpus), gpu_model=models[0])
