"""Energy meters behind one small protocol.

`NvmlMonitor` measures NVIDIA GPUs, `RaplMonitor` the processors, `EstimateMonitor` multiplies a known power by time.
Zeus's `ZeusMonitor` fits the same protocol as it is.
"""

from __future__ import annotations

from wattwise.errors import MonitorError
from wattwise.monitor.estimate import EstimateMonitor
from wattwise.monitor.gpu import INSTEAD, visible_gpus
from wattwise.monitor.nvml import NvmlMonitor, gpu_config_of
from wattwise.monitor.rapl import RaplMonitor
from wattwise.monitor.window import Measurement, Monitor, Window
from wattwise.spec import GpuConfig

__all__ = [
    "EstimateMonitor",
    "Measurement",
    "Monitor",
    "NvmlMonitor",
    "RaplMonitor",
    "Window",
    "default_monitor",
    "gpu_config",
]


def default_monitor() -> NvmlMonitor:
    """The meter of a trainer that names none: all visible NVIDIA GPUs.

    Raises:
        MonitorError: There is no such GPU; the message says what to pass instead.
    """
    return NvmlMonitor()


def gpu_config(monitor: Monitor) -> GpuConfig:
    """What `monitor` measures, as a job's specification names it.

    Args:
        monitor: Ours tell it themselves; for any other, such as a `ZeusMonitor`, the GPUs of its `gpu_indices` are
            looked up.

    Returns:
        Model, number, and max power: the highest power limit of one GPU times the number of GPUs, in watts.

    Raises:
        MonitorError: The GPUs are of different models, or this cannot be told; the message says what to give.
    """
    own = getattr(monitor, "gpu_config", None)
    if callable(own):
        config: GpuConfig = own()
        return config
    if not monitor.gpu_indices:
        raise MonitorError(f"{monitor!r} measures no GPU, so its power limit is unknown; {INSTEAD}")
    return gpu_config_of(visible_gpus(monitor.gpu_indices))
