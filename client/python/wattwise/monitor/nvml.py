"""The GPUs' own energy meters, read through NVIDIA's management library."""

from __future__ import annotations

import time
from collections.abc import Sequence

from wattwise.errors import MonitorError
from wattwise.monitor.gpu import Gpu, visible_gpus
from wattwise.monitor.window import Reading, WindowMonitor
from wattwise.spec import GpuConfig

_POLL_SECONDS = 0.1


class NvmlMonitor(WindowMonitor):
    """Measures NVIDIA GPUs: the sum of their energy counters.

    GPUs before Volta have no such counter. Their power is read ten times a second while a window is open, and the
    energy is the trapezoidal integral of it.

    Args:
        gpu_indices: The GPUs to measure, numbered from 0 among those that CUDA_VISIBLE_DEVICES shows, as in PyTorch;
            None for all of those. A process that speaks for a whole distributed training measures all its GPUs.

    Attributes:
        gpu_indices: As given, or the numbers of all visible GPUs.
        kind: "nvml"; "nvml-polled" when a GPU among them has no energy counter.

    Raises:
        MonitorError: There is no driver or no such GPU; the message says what to pass instead.
    """

    kind = "nvml"

    def __init__(self, gpu_indices: Sequence[int] | None = None) -> None:
        self._gpus = visible_gpus(gpu_indices)
        self._counting = [gpu for gpu in self._gpus if gpu.has_energy_counter]
        self._polled = [gpu for gpu in self._gpus if not gpu.has_energy_counter]
        # A sum is no better than its worst part.
        self.kind = "nvml-polled" if self._polled else "nvml"
        self._integral = PowerIntegral()
        super().__init__(
            gpu_indices=range(len(self._gpus)) if gpu_indices is None else gpu_indices,
            poll_seconds=_POLL_SECONDS if self._polled else None,
        )
        self._read()  # refuses here what cannot be read, rather than in the first window

    def __repr__(self) -> str:
        return f"NvmlMonitor({', '.join(f'{gpu.name} ({gpu.uuid})' for gpu in self._gpus)})"

    def gpu_config(self) -> GpuConfig:
        """The measured GPUs: their model, their number, and the highest power limit of one times their number.

        Raises:
            MonitorError: They are of different models, or tell no power limit.
        """
        return gpu_config_of(self._gpus)

    def _read(self) -> Reading:
        now = time.monotonic()
        counted = sum(gpu.energy_joules() for gpu in self._counting)
        if not self._polled:
            return Reading(now, counted)
        return Reading(now, counted + self._integral.add(now, sum(gpu.power_watts() for gpu in self._polled)))


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


def gpu_config_of(gpus: Sequence[Gpu]) -> GpuConfig:
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
