"""The GPUs of a monitor, for the specification of a job."""

from __future__ import annotations

from collections.abc import Sequence

from wattwise.errors import MonitorError, Remedy
from wattwise.monitor.amd_gpu import visible_amd_gpus
from wattwise.monitor.gpu import visible_gpus
from wattwise.monitor.gpu_monitor import MeasuredGpu, gpu_group_of
from wattwise.monitor.window import Monitor
from wattwise.rules import GpuGroup


def gpu_group(monitor: Monitor) -> GpuGroup:
    """Returns what `monitor` measures, for the specification of a job.

    Args:
        monitor: Wattwise's monitors know it; for any other, such as a `ZeusMonitor`, the GPUs of its `gpu_indices` are
            looked up.

    Returns:
        Model, number, and the highest power limit of one GPU, in watts.

    Raises:
        MonitorError: if the GPUs are of different models, or unknown; the message says what to pass instead.
    """
    own = getattr(monitor, "gpu_group", None)
    if callable(own):
        group: GpuGroup = own()
        return group
    if not monitor.gpu_indices:
        problem = f"{monitor!r} measures no GPU, so its power limit is unknown"
        raise MonitorError(problem, Remedy.GPU_GROUP, Remedy.OTHER_MONITOR)
    try:
        gpus = _gpus(monitor.gpu_indices)
    except MonitorError as error:
        # Such a monitor may measure GPUs that no library of a vendor shows.
        remedies = dict.fromkeys([Remedy.GPU_GROUP, *error.remedies])
        raise MonitorError(f"the GPUs of {monitor!r} cannot be looked up: {error.problem}", *remedies) from None
    return gpu_group_of(gpus)


def _gpus(gpu_indices: Sequence[int]) -> Sequence[MeasuredGpu]:
    """Returns NVIDIA GPUs, or AMD GPUs on a machine without any."""
    try:
        return visible_gpus(gpu_indices)
    except MonitorError as error:
        try:
            return visible_amd_gpus(gpu_indices)
        except MonitorError:
            raise error from None
