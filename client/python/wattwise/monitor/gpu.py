"""One GPU as NVML knows it: SI units out, MonitorError when something fails, pynvml imported on first use."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from wattwise.errors import MonitorError
from wattwise.monitor.visible import chosen_devices, visible_devices

INSTEAD = (
    "pass another monitor instead: monitor=RaplMonitor() for training on the processor, "
    "monitor=EstimateMonitor(watts=...) for a known power (both in wattwise.monitor), or a ZeusMonitor"
)
_logger = logging.getLogger(__name__)


class Gpu:
    """A GPU by its NVML handle.

    Attributes:
        name: Its model, such as "NVIDIA H200".
        uuid: "GPU-…".
        is_split: Whether it is in MIG mode, in which several trainings may share it.
        has_energy_counter: Whether it counts energy itself; GPUs before Volta only tell their power.
    """

    def __init__(self, nvml: Any, index: int) -> None:
        self._nvml = nvml
        with _explained(nvml, f"GPU {index}"):
            self._handle = nvml.nvmlDeviceGetHandleByIndex(index)
            self.name = str(nvml.nvmlDeviceGetName(self._handle))
            self.uuid = str(nvml.nvmlDeviceGetUUID(self._handle))
        self.is_split = (self._asked(nvml.nvmlDeviceGetMigMode) or [0])[0] == nvml.NVML_DEVICE_MIG_ENABLE
        self.has_energy_counter = self._asked(nvml.nvmlDeviceGetTotalEnergyConsumption) is not None

    def energy_joules(self) -> float:
        """Joules since the driver was loaded."""
        return self._number(self._nvml.nvmlDeviceGetTotalEnergyConsumption, "its energy") / 1e3

    def power_watts(self) -> float:
        """Watts that it draws now."""
        return self._number(self._nvml.nvmlDeviceGetPowerUsage, "its power") / 1e3

    def max_power_watts(self) -> float:
        """The highest power limit that it may be set to; where limits are fixed, the one in force."""
        constraints = self._asked(self._nvml.nvmlDeviceGetPowerManagementLimitConstraints)
        if constraints is not None:
            return int(constraints[1]) / 1e3
        instead = "give the job gpu=GpuConfig(max_power_watts=..., number_of_gpus=..., gpu_model=...)"
        return self._number(self._nvml.nvmlDeviceGetEnforcedPowerLimit, "its power limit", instead) / 1e3

    def _number(self, query: Callable[[Any], int], what: str, instead: str = INSTEAD) -> int:
        number = self._asked(query)
        if number is None:
            raise MonitorError(f"{self.name} ({self.uuid}) does not tell {what}; {instead}")
        return int(number)

    def _asked(self, query: Callable[[Any], Any]) -> Any | None:
        """The answer, or None from a GPU or driver that has none."""
        with _explained(self._nvml, f"{self.name} ({self.uuid})"):
            try:
                return query(self._handle)
            except (self._nvml.NVMLError_NotSupported, self._nvml.NVMLError_FunctionNotFound):
                return None


def visible_gpus(gpu_indices: Sequence[int] | None = None) -> list[Gpu]:
    """The GPUs that CUDA_VISIBLE_DEVICES shows, or those of them that `gpu_indices` choose.

    CUDA numbers the GPUs of a mixed machine by speed and NVML by place. CUDA_DEVICE_ORDER=PCI_BUS_ID makes them agree.

    Args:
        gpu_indices: Which of the visible GPUs, from 0; None for all of them.

    Raises:
        MonitorError: There is no driver or no such GPU, a GPU is asked for twice, or one is split into MIG slices.
    """
    nvml = _load()
    with _explained(nvml, "the number of GPUs"):
        gpus = [_open(nvml, index) for index in range(nvml.nvmlDeviceGetCount())]
    variable = os.environ.get("CUDA_VISIBLE_DEVICES")
    visible = visible_devices(variable, [gpu.uuid if isinstance(gpu, Gpu) else "" for gpu in gpus])
    if not visible:
        hidden = "" if variable is None else f" that CUDA_VISIBLE_DEVICES={variable!r} shows"
        raise MonitorError(f"this machine has no NVIDIA GPU{hidden}; {INSTEAD}")
    chosen = [_usable(gpus[i]) for i in chosen_devices(visible, gpu_indices)]
    if len(chosen) < len(gpus) and "GPU-" not in (variable or ""):
        _warn_of_order([gpu for gpu in gpus if isinstance(gpu, Gpu)], chosen)
    return chosen


def _open(nvml: Any, index: int) -> Gpu | MonitorError:
    """The GPU, or why there is none: a broken one is nobody's business but of those who choose it."""
    try:
        return Gpu(nvml, index)
    except MonitorError as error:
        return error


def _usable(gpu: Gpu | MonitorError) -> Gpu:
    if isinstance(gpu, MonitorError):
        raise gpu
    if gpu.is_split:
        raise MonitorError(
            f"{gpu.name} ({gpu.uuid}) is split into MIG slices, whose energy no GPU measures apart from the others'; "
            "leave it out with gpu_indices or CUDA_VISIBLE_DEVICES, or pass monitor=EstimateMonitor(watts=...)"
        )
    return gpu


def _warn_of_order(gpus: Sequence[Gpu], chosen: Sequence[Gpu]) -> None:
    """Says what is measured where CUDA may have meant other GPUs by the same numbers."""
    if len({gpu.name for gpu in gpus}) > 1 and os.environ.get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID":
        _logger.warning(
            "This machine's GPUs differ, so that CUDA may number them otherwise than the driver; measuring %s. "
            "Set CUDA_DEVICE_ORDER=PCI_BUS_ID to be sure that these are the GPUs that train.",
            ", ".join(f"{gpu.name} ({gpu.uuid})" for gpu in chosen),
        )


def _load() -> Any:
    try:
        import pynvml  # noqa: PLC0415 - a machine without GPUs need not have it
    except ModuleNotFoundError:
        raise MonitorError(f"the package nvidia-ml-py is not installed, so GPUs cannot be read; {INSTEAD}") from None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        raise MonitorError(f"NVIDIA's driver cannot be reached ({error}); {INSTEAD}") from error
    return pynvml


@contextmanager
def _explained(nvml: Any, what: str) -> Iterator[None]:
    try:
        yield
    except nvml.NVMLError as error:
        raise MonitorError(f"{what} cannot be read: {error}") from error
