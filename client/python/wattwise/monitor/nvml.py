"""The GPUs' own energy monitors, read through NVIDIA's management library."""

from __future__ import annotations

from collections.abc import Sequence

from wattwise.monitor.gpu import visible_gpus
from wattwise.monitor.gpu_monitor import GpuMonitor


class NvmlMonitor(GpuMonitor):
    """Measures NVIDIA GPUs: the sum of their energy counters.

    GPUs before Volta have no such counter. Their power is read ten times a second while a window is open, and the
    energy is the trapezoidal integral of it. In windows shorter than 0.1 s, which counters are too coarse for, and
    where a counter was reset or stands still, a GPU's energy is its power at the window's end times its length.

    Args:
        gpu_indices: The GPUs to measure, numbered from 0 among those that CUDA_VISIBLE_DEVICES shows, as in PyTorch;
            None for all of those. A process that speaks for a whole distributed training measures all its GPUs.
        use_counter: False integrates power even where there is a counter, to compare the two.

    Attributes:
        gpu_indices: As given, or the numbers of all visible GPUs.
        kind: "nvml"; "nvml-polled" when a GPU among them has no energy counter.

    Raises:
        MonitorError: There is no driver or no such GPU, or one is split into MIG slices; the message says what to pass
            instead.
    """

    kind = "nvml"

    def __init__(self, gpu_indices: Sequence[int] | None = None, *, use_counter: bool = True) -> None:
        self._gpus = visible_gpus(gpu_indices)
        indices = range(len(self._gpus)) if gpu_indices is None else gpu_indices
        super().__init__(self._gpus, indices, use_counter=use_counter)
