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
    from wattwise.monitor.amd_gpu import AmdSmiMonitor as AmdSmiMonitor
    from wattwise.monitor.combined import CombinedMonitor as CombinedMonitor
    from wattwise.monitor.config import gpu_group as gpu_group
    from wattwise.monitor.estimate import EstimateMonitor as EstimateMonitor
    from wattwise.monitor.gpu import NvmlMonitor as NvmlMonitor
    from wattwise.monitor.kind import EnergyQuality as EnergyQuality
    from wattwise.monitor.kind import MonitorKinds as MonitorKinds
    from wattwise.monitor.kind import monitor_kinds as monitor_kinds
    from wattwise.monitor.present import default_monitor as default_monitor
    from wattwise.monitor.rapl import RaplMonitor as RaplMonitor
    from wattwise.monitor.window import Monitor as Monitor
    from wattwise.monitor.window import Window as Window
    from wattwise.monitor.window import WindowMeasurement as WindowMeasurement

# The modules of the names above, for imports at run time: type checkers read import statements alone.
_MODULES = {
    "AmdSmiMonitor": "wattwise.monitor.amd_gpu",
    "CombinedMonitor": "wattwise.monitor.combined",
    "EnergyQuality": "wattwise.monitor.kind",
    "EstimateMonitor": "wattwise.monitor.estimate",
    "Monitor": "wattwise.monitor.window",
    "MonitorKinds": "wattwise.monitor.kind",
    "NvmlMonitor": "wattwise.monitor.gpu",
    "RaplMonitor": "wattwise.monitor.rapl",
    "Window": "wattwise.monitor.window",
    "WindowMeasurement": "wattwise.monitor.window",
    "default_monitor": "wattwise.monitor.present",
    "gpu_group": "wattwise.monitor.config",
    "monitor_kinds": "wattwise.monitor.kind",
}

__all__ = list(_MODULES)

if not TYPE_CHECKING:
    # Hidden from type checkers, which would accept every misspelt name.

    def __getattr__(name: str) -> object:
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value: object = getattr(importlib.import_module(_MODULES[name]), name)
        globals()[name] = value
        return value
