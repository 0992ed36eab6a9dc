"""Energy monitors behind one small protocol.

`NvmlMonitor` measures NVIDIA GPUs, `AmdSmiMonitor` AMD's, `RaplMonitor` the processors; `EstimateMonitor` multiplies a
known power by time, and `CombinedMonitor` adds several up. Zeus's `ZeusMonitor` fits the same protocol as it is.
`python -m wattwise.monitor` shows which of them this machine has.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

from wattwise.errors import MonitorError
from wattwise.monitor.kind import MonitorKinds, monitor_kinds
from wattwise.monitor.window import Measurement, Monitor, Window

if TYPE_CHECKING:
    from wattwise.monitor.amdsmi import AmdSmiMonitor
    from wattwise.monitor.combined import CombinedMonitor
    from wattwise.monitor.estimate import EstimateMonitor
    from wattwise.monitor.gpu_monitor import MeasuredGpu
    from wattwise.monitor.nvml import NvmlMonitor
    from wattwise.monitor.rapl import RaplMonitor
    from wattwise.spec import GpuConfig

__all__ = [
    "AmdSmiMonitor",
    "CombinedMonitor",
    "EstimateMonitor",
    "Measurement",
    "Monitor",
    "MonitorKinds",
    "NvmlMonitor",
    "RaplMonitor",
    "Window",
    "default_monitor",
    "gpu_config",
    "monitor_kinds",
]


_MODULES = {
    "AmdSmiMonitor": "amdsmi",
    "CombinedMonitor": "combined",
    "EstimateMonitor": "estimate",
    "NvmlMonitor": "nvml",
    "RaplMonitor": "rapl",
}

if not TYPE_CHECKING:
    # Hidden from type checkers, to which every misspelt name would look like one of ours.

    def __getattr__(name: str) -> object:
        # A trainer has one monitor and need not load the others.
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)


def default_monitor() -> NvmlMonitor:
    """The monitor of a trainer that names none: all visible NVIDIA GPUs.

    Raises:
        MonitorError: There is no such GPU; the message says what to pass instead, and what of it this machine has.
    """
    from wattwise.monitor.nvml import NvmlMonitor  # noqa: PLC0415 - loaded by those who have no other monitor

    try:
        return NvmlMonitor()
    except MonitorError as error:
        from wattwise.monitor.present import alternatives  # noqa: PLC0415 - loads all monitors

        raise MonitorError(f"{error}. {alternatives()}") from None


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
    from wattwise.monitor.gpu import INSTEAD  # noqa: PLC0415 - our monitors get by without it
    from wattwise.monitor.gpu_monitor import gpu_config_of  # noqa: PLC0415

    if not monitor.gpu_indices:
        raise MonitorError(f"{monitor!r} measures no GPU, so its power limit is unknown; {INSTEAD}")
    return gpu_config_of(_gpus(monitor.gpu_indices))


def _gpus(gpu_indices: Sequence[int]) -> Sequence[MeasuredGpu]:
    """NVIDIA's GPUs of these numbers, or, on a machine that has none, AMD's."""
    from wattwise.monitor.amd_gpu import visible_amd_gpus  # noqa: PLC0415 - likewise
    from wattwise.monitor.gpu import visible_gpus  # noqa: PLC0415

    try:
        return visible_gpus(gpu_indices)
    except MonitorError as error:
        try:
            return visible_amd_gpus(gpu_indices)
        except MonitorError:
            raise error from None
