"""The energy monitors of AMD's GPUs, read through AMD SMI."""

from __future__ import annotations

from collections.abc import Sequence

from wattwise.monitor.amd_gpu import visible_amd_gpus
from wattwise.monitor.gpu_monitor import GpuMonitor


class AmdSmiMonitor(GpuMonitor):
    """Measures AMD GPUs: the sum of their energy counters.

    GPUs without one, short windows and counters that cannot be right are treated as `NvmlMonitor` treats them.

    Args:
        gpu_indices: The GPUs to measure, numbered from 0 among those that ROCR_VISIBLE_DEVICES and
            HIP_VISIBLE_DEVICES (or, where that is unset, CUDA_VISIBLE_DEVICES) show, as in PyTorch; None for all.
        use_counter: False integrates power even where there is a counter, to compare the two.

    Attributes:
        gpu_indices: As given, or the numbers of all visible GPUs.

    Raises:
        MonitorError: The package amdsmi, its library or the driver is missing, or there is no such GPU, or one is
            partitioned; the message says what to do or to pass instead.
    """

    kind = "amdsmi"

    def __init__(self, gpu_indices: Sequence[int] | None = None, *, use_counter: bool = True) -> None:
        gpus = visible_amd_gpus(gpu_indices)
        super().__init__(gpus, range(len(gpus)) if gpu_indices is None else gpu_indices, use_counter=use_counter)
