"""Energy monitors behind one small protocol.

`NvmlMonitor` measures NVIDIA GPUs, `AmdSmiMonitor` AMD GPUs and `RaplMonitor` processors; `EstimateMonitor` multiplies
a known power by time, and `CombinedMonitor` adds up several monitors. Zeus's `ZeusMonitor` fits the same protocol.
`python -m wattwise.monitor` shows which of them work on this machine.
"""

from __future__ import annotations

from wattwise.monitor.amd_gpu import AmdSmiMonitor
from wattwise.monitor.combined import CombinedMonitor
from wattwise.monitor.config import gpu_config
from wattwise.monitor.estimate import EstimateMonitor
from wattwise.monitor.gpu import NvmlMonitor
from wattwise.monitor.kind import MonitorKinds, monitor_kinds
from wattwise.monitor.present import default_monitor
from wattwise.monitor.rapl import RaplMonitor
from wattwise.monitor.window import Monitor, Window, WindowMeasurement

__all__ = [
    "AmdSmiMonitor",
    "CombinedMonitor",
    "EstimateMonitor",
    "Monitor",
    "MonitorKinds",
    "NvmlMonitor",
    "RaplMonitor",
    "Window",
    "WindowMeasurement",
    "default_monitor",
    "gpu_config",
    "monitor_kinds",
]
