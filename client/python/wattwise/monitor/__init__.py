"""Energy monitors behind one small protocol.

`NvmlMonitor` measures NVIDIA GPUs, `AmdSmiMonitor` AMD GPUs and `RaplMonitor` processors; `EstimateMonitor` multiplies
a known power by time, and `CombinedMonitor` adds up several monitors. Zeus's `ZeusMonitor` fits the same protocol.
`python -m wattwise.monitor` shows which of them work on this machine.

Each name is imported on first use: tables need what `kind` has, and no monitor.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from wattwise.monitor.amd_gpu import AmdSmiMonitor
    from wattwise.monitor.combined import CombinedMonitor
    from wattwise.monitor.config import gpu_group
    from wattwise.monitor.estimate import EstimateMonitor
    from wattwise.monitor.gpu import NvmlMonitor
    from wattwise.monitor.kind import EnergyQuality, MonitorKinds, monitor_kinds
    from wattwise.monitor.present import default_monitor
    from wattwise.monitor.rapl import RaplMonitor
    from wattwise.monitor.window import Monitor, Window, WindowMeasurement

_MODULES = {
    "AmdSmiMonitor": "amd_gpu",
    "CombinedMonitor": "combined",
    "EstimateMonitor": "estimate",
    "Monitor": "window",
    "EnergyQuality": "kind",
    "MonitorKinds": "kind",
    "NvmlMonitor": "gpu",
    "RaplMonitor": "rapl",
    "Window": "window",
    "WindowMeasurement": "window",
    "default_monitor": "present",
    "gpu_group": "config",
    "monitor_kinds": "kind",
}

__all__ = [
    "AmdSmiMonitor",
    "CombinedMonitor",
    "EnergyQuality",
    "EstimateMonitor",
    "Monitor",
    "MonitorKinds",
    "NvmlMonitor",
    "RaplMonitor",
    "Window",
    "WindowMeasurement",
    "default_monitor",
    "gpu_group",
    "monitor_kinds",
]

if not TYPE_CHECKING:
    # Hidden from type checkers, which would accept every misspelt name.

    def __getattr__(name: str) -> object:
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value: object = getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
        globals()[name] = value
        return value
