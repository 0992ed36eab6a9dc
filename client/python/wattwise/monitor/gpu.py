"""NVIDIA GPUs: their monitor, and access through NVML in SI units; pynvml is imported on first use."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from wattwise.errors import MonitorError, NoDeviceError, Remedy, log, short_tracebacks
from wattwise.monitor.gpu_monitor import GpuMonitor
from wattwise.monitor.visible import chosen_devices, visible_devices


@short_tracebacks
class NvmlMonitor(GpuMonitor):
    """Measures NVIDIA GPUs: the sum of their energy counters.

    GPUs before Volta have no such counter: their power is read ten times a second while a window is open, and
    integrated by trapezoids. In windows shorter than 0.1 s, for which counters are too coarse, and after a counter was
    reset or did not change, a GPU's energy is its power at the end of the window times the window's length.

    Args:
        gpu_indices: the GPUs to measure, numbered from 0 among those that CUDA_VISIBLE_DEVICES shows, as in PyTorch;
            None for all of those. Rank 0 of a distributed training measures the GPUs of all ranks.
        use_counter: False integrates power even where there is a counter, to compare the two.

    Attributes:
        gpu_indices: as given, or the numbers of all visible GPUs.
        kind: "nvml"; "nvml-polled" if a GPU among them has no energy counter.

    Raises:
        MonitorError: if there is no NVIDIA driver or no such GPU, or one is split into MIG slices.
    """

    kind = "nvml"

    def __init__(self, gpu_indices: Sequence[int] | None = None, *, use_counter: bool = True) -> None:
        super().__init__(visible_gpus(gpu_indices), gpu_indices, use_counter=use_counter)


_OF_A_GPU = Remedy.SELECT_GPUS, Remedy.OTHER_MONITOR
"""What helps if a single GPU fails."""


class NvidiaGpu:
    """A GPU by its NVML handle.

    Attributes:
        name: its model, such as "NVIDIA H200".
        uuid: "GPU-…".
        is_split: whether it is in MIG mode, in which several trainings may share it.
        has_energy_counter: whether it counts energy; GPUs before Volta only report their power.
    """

    def __init__(self, nvml: Any, index: int) -> None:
        self._nvml = nvml
        with _error_context(nvml, f"GPU {index}", *_OF_A_GPU):
            self._handle = nvml.nvmlDeviceGetHandleByIndex(index)
            self.name = _text(nvml.nvmlDeviceGetName, self._handle) or "NVIDIA GPU"
            self.uuid = _text(nvml.nvmlDeviceGetUUID, self._handle)
        self.is_split = (self._query(nvml.nvmlDeviceGetMigMode) or [0])[0] == nvml.NVML_DEVICE_MIG_ENABLE
        self.has_energy_counter = self._query(nvml.nvmlDeviceGetTotalEnergyConsumption) is not None

    def energy_joules(self) -> float:
        """Returns the joules since the NVIDIA driver was loaded."""
        return self._number(self._nvml.nvmlDeviceGetTotalEnergyConsumption, "its energy") / 1e3

    def power_watts(self) -> float:
        """Returns the current power."""
        return self._number(self._nvml.nvmlDeviceGetPowerUsage, "its power") / 1e3

    def max_power_watts(self) -> float:
        """Returns the highest power limit that can be set; the current one if limits are fixed."""
        constraints = self._query(self._nvml.nvmlDeviceGetPowerManagementLimitConstraints)
        milliwatts = int(constraints[1]) if constraints is not None else 0
        limit = self._nvml.nvmlDeviceGetEnforcedPowerLimit
        milliwatts = milliwatts or self._number(limit, "its power limit", Remedy.GPU_GROUP, Remedy.SELECT_GPUS)
        if milliwatts <= 0:
            problem = f"{self.name} ({self.uuid}) reports a power limit of 0 W"
            raise MonitorError(problem, Remedy.GPU_GROUP, Remedy.SELECT_GPUS)
        return milliwatts / 1e3

    def _number(self, query: Callable[[Any], int], what: str, *remedies: Remedy) -> int:
        number = self._query(query)
        if number is None:
            problem = f"{self.name} ({self.uuid}) does not report {what}"
            raise MonitorError(problem, *(remedies or (Remedy.OTHER_MONITOR,)))
        return int(number)

    def _query(self, query: Callable[[Any], Any]) -> Any | None:
        """Returns the answer; None if the GPU or the NVIDIA driver does not support the query."""
        with _error_context(self._nvml, f"{self.name} ({self.uuid})", *_OF_A_GPU):
            try:
                return query(self._handle)
            except (self._nvml.NVMLError_NotSupported, self._nvml.NVMLError_FunctionNotFound):
                return None


def visible_gpus(gpu_indices: Sequence[int] | None = None) -> list[NvidiaGpu]:
    """Returns the GPUs that CUDA_VISIBLE_DEVICES shows, or those of them that `gpu_indices` choose.

    On a machine with different GPUs, CUDA numbers them by speed and NVML by PCI bus; CUDA_DEVICE_ORDER=PCI_BUS_ID makes
    CUDA use the order of NVML.

    Raises:
        MonitorError: if there is no NVIDIA driver or no such GPU, a GPU is listed twice, or one is split into MIG
            slices.
    """
    nvml = _load()
    with _error_context(nvml, "the number of GPUs"):
        gpus = [_open(nvml, index) for index in range(nvml.nvmlDeviceGetCount())]
    variable = os.environ.get("CUDA_VISIBLE_DEVICES")
    visible = visible_devices(variable, [gpu.uuid if isinstance(gpu, NvidiaGpu) else "" for gpu in gpus])
    if not visible:
        hidden = "" if variable is None else f" that CUDA_VISIBLE_DEVICES={variable!r} shows"
        raise NoDeviceError(f"this machine has no NVIDIA GPU{hidden}", Remedy.OTHER_MONITOR)
    chosen = [_usable(gpus[i]) for i in chosen_devices(visible, gpu_indices)]
    if len(chosen) < len(gpus) and "GPU-" not in (variable or ""):
        _warn_of_order([gpu for gpu in gpus if isinstance(gpu, NvidiaGpu)], chosen)
    return chosen


def _open(nvml: Any, index: int) -> NvidiaGpu | MonitorError:
    """Returns the GPU, or its error, which is raised only if this GPU is selected."""
    try:
        return NvidiaGpu(nvml, index)
    except MonitorError as error:
        return error


def _usable(gpu: NvidiaGpu | MonitorError) -> NvidiaGpu:
    if isinstance(gpu, MonitorError):
        raise gpu
    if gpu.is_split:
        raise MonitorError(
            f"{gpu.name} ({gpu.uuid}) is split into MIG slices, whose energy cannot be measured separately",
            Remedy.SELECT_GPUS,
            Remedy.ESTIMATE,
        )
    return gpu


def _warn_of_order(gpus: Sequence[NvidiaGpu], chosen: Sequence[NvidiaGpu]) -> None:
    """Logs the measured GPUs if CUDA may give their numbers to other GPUs."""
    if len({gpu.name for gpu in gpus}) > 1 and os.environ.get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID":
        log.warning(
            "This machine has different GPUs, which CUDA may number in another order than the NVIDIA driver; "
            "measuring %s. Set CUDA_DEVICE_ORDER=PCI_BUS_ID so that both use the same order.",
            ", ".join(f"{gpu.name} ({gpu.uuid})" for gpu in chosen),
        )


def _load() -> Any:
    try:
        import pynvml  # noqa: PLC0415 - not needed on a machine without NVIDIA GPUs
    except ModuleNotFoundError:
        raise NoDeviceError(
            "the package nvidia-ml-py is not installed, so NVIDIA GPUs cannot be read", Remedy.OTHER_MONITOR
        ) from None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        absent = isinstance(error, pynvml.NVMLError_LibraryNotFound | pynvml.NVMLError_DriverNotLoaded)
        problem = f"the NVIDIA driver cannot be reached ({error})"
        raise (NoDeviceError if absent else MonitorError)(problem, Remedy.OTHER_MONITOR) from None
    return pynvml


def _text(query: Callable[[Any], str], handle: Any) -> str:
    """Returns the answer in printable characters, whatever its encoding."""
    try:
        text = str(query(handle))
    except UnicodeDecodeError as error:
        text = error.object.decode("utf-8", "backslashreplace")
    return "".join(character if character.isprintable() else "?" for character in text)


@contextmanager
def _error_context(nvml: Any, what: str, *remedies: Remedy) -> Iterator[None]:
    try:
        yield
    except nvml.NVMLError as error:
        raise MonitorError(f"{what} cannot be read: {error}", *remedies) from None
