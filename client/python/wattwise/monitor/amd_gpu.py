"""AMD GPUs: their monitor, and access through AMD SMI in SI units; amdsmi is imported on first use.

Names, units and "N/A" are those of https://rocm.docs.amd.com/projects/amdsmi; older versions differ in places.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from io import StringIO
from operator import itemgetter
from typing import Any

from wattwise.errors import MonitorError, NoDeviceError, Remedy, short_tracebacks
from wattwise.monitor.gpu_monitor import GpuMonitor
from wattwise.monitor.visible import chosen_devices, visible_devices

# Means "unknown" in fields of 16 and 32 bits, which have no "N/A".
_UNKNOWN_WATTS = 0xFFFF
# A lower number is in watts, the unit that virtual machines get: no GPU is limited to 10 mW.
_LOWEST_LIMIT_MICROWATTS = 10_000


@short_tracebacks
class AmdSmiMonitor(GpuMonitor):
    """Measures AMD GPUs: the sum of their energy counters.

    GPUs without a counter, short windows and wrong counters are treated as by `NvmlMonitor`.

    Args:
        gpu_indices: the GPUs to measure, numbered from 0 among those that ROCR_VISIBLE_DEVICES and
            HIP_VISIBLE_DEVICES (or, where that is unset, CUDA_VISIBLE_DEVICES) show, as in PyTorch; None for all.
        use_counter: False integrates power even where there is a counter, to compare the two.

    Attributes:
        gpu_indices: as given, or the numbers of all visible GPUs.

    Raises:
        MonitorError: if the package amdsmi, its library or the AMD driver is missing, there is no such GPU, or one is
            partitioned.
    """

    kind = "amdsmi"

    def __init__(self, gpu_indices: Sequence[int] | None = None, *, use_counter: bool = True) -> None:
        super().__init__(visible_amd_gpus(gpu_indices), gpu_indices, use_counter=use_counter)


class AmdGpu:
    """A GPU by its processor handle.

    Attributes:
        name: its model, such as "AMD Instinct MI300X".
        uuid: "GPU-" and its serial number, as ROCR_VISIBLE_DEVICES has it.
        position: its number in HIP if no GPU is hidden; None if AMD SMI does not report it.
        is_split: whether it is partitioned into several devices.
        has_energy_counter: whether it counts energy.
    """

    def __init__(self, smi: Any, handle: Any, number: int) -> None:
        self._smi = smi
        self._handle = handle
        self._label = f"AMD GPU {number}"
        asic = self._query("amdsmi_get_gpu_asic_info") or {}
        place = self._query("amdsmi_get_gpu_enumeration_info") or {}
        self.name = _text(asic.get("market_name")) or "AMD GPU"
        self.uuid = _uuid(_text(place.get("hip_uuid")) or _text(asic.get("asic_serial")) or str(number))
        self._label = f"{self.name} ({self.uuid})"
        self.position = place["hip_id"] if isinstance(place.get("hip_id"), int) else None
        self.is_split = (_text(self._query("amdsmi_get_gpu_compute_partition")) or "SPX") != "SPX"
        self.has_energy_counter = self._counter() is not None

    def energy_joules(self) -> float:
        """Returns the joules since the AMD driver was loaded."""
        microjoules = self._counter()
        if microjoules is None:
            raise self._missing("its energy")
        return microjoules / 1e6

    def power_watts(self) -> float:
        """Returns the current power; a recent average if the GPU reports only that."""
        info = self._query("amdsmi_get_power_info") or {}
        reported = [info.get(field) for field in ("current_socket_power", "average_socket_power", "socket_power")]
        watts = [float(value) for value in reported if isinstance(value, int) and 0 <= value < _UNKNOWN_WATTS]
        if not watts:
            raise self._missing("its power")
        return next(filter(None, watts), 0.0)

    def max_power_watts(self) -> float:
        """Returns the highest power limit that can be set; the current one if limits are fixed."""
        info = self._query("amdsmi_get_power_cap_info") or {}
        for limit in (info.get("max_power_cap"), info.get("power_cap")):
            if isinstance(limit, int) and limit > 0:
                return limit / 1e6 if limit >= _LOWEST_LIMIT_MICROWATTS else float(limit)
        raise self._missing("a power limit above 0 W", Remedy.GPU_GROUP, Remedy.SELECT_GPUS)

    def _counter(self) -> float | None:
        count = self._query("amdsmi_get_energy_count") or {}
        # Called "power" before ROCm 6.2.
        steps, microjoules = count.get("energy_accumulator", count.get("power")), count.get("counter_resolution")
        if not isinstance(steps, int) or not isinstance(microjoules, float | int) or microjoules <= 0:
            return None
        return steps * float(microjoules)

    def _missing(self, what: str, *remedies: Remedy) -> MonitorError:
        return MonitorError(f"{self._label} does not report {what}", *(remedies or (Remedy.OTHER_MONITOR,)))

    def _query(self, function: str) -> Any | None:
        """Returns the answer; None if the GPU, the AMD driver or this version of amdsmi does not support the query."""
        query: Callable[[Any], Any] | None = getattr(self._smi, function, None)
        if query is None:
            return None
        wrapper = self._smi.amdsmi_wrapper
        unsupported = {wrapper.AMDSMI_STATUS_NOT_SUPPORTED, wrapper.AMDSMI_STATUS_NOT_YET_IMPLEMENTED}
        with _error_context(self._smi, self._label, Remedy.SELECT_GPUS, Remedy.OTHER_MONITOR):
            try:
                return query(self._handle)
            except UnicodeDecodeError:
                # A name in another encoding.
                return None
            except self._smi.AmdSmiLibraryException as error:
                if error.get_error_code() in unsupported:
                    return None
                raise


def visible_amd_gpus(gpu_indices: Sequence[int] | None = None) -> list[AmdGpu]:
    """Returns the GPUs that ROCm's variables show, or those of them that `gpu_indices` choose.

    Raises:
        MonitorError: if there is no amdsmi, AMD driver or such GPU, a GPU is listed twice, or one is partitioned.
    """
    smi = _load()
    with _error_context(smi, "the number of AMD GPUs"):
        handles = smi.amdsmi_get_processor_handles()
    gpus = [_open(smi, handle, number) for number, handle in enumerate(handles)]
    positions = [gpu.position for gpu in gpus if isinstance(gpu, AmdGpu) and gpu.position is not None]
    if len(positions) == len(gpus):
        gpus = [gpu for _, gpu in sorted(zip(positions, gpus, strict=True), key=itemgetter(0))]
    visible = _visible([gpu.uuid if isinstance(gpu, AmdGpu) else "" for gpu in gpus])
    if not visible:
        shown = " and ".join(f"{name}={value!r}" for name, value in _variables().items())
        raise NoDeviceError(f"this machine has no AMD GPU{shown and f' that {shown} shows'}", Remedy.OTHER_MONITOR)
    return [_usable(gpus[i]) for i in chosen_devices(visible, gpu_indices)]


def _open(smi: Any, handle: Any, number: int) -> AmdGpu | MonitorError:
    """Returns the GPU, or its error, which is raised only if this GPU is selected."""
    try:
        return AmdGpu(smi, handle, number)
    except MonitorError as error:
        return error


def _usable(gpu: AmdGpu | MonitorError) -> AmdGpu:
    if isinstance(gpu, MonitorError):
        raise gpu
    if gpu.is_split:
        raise MonitorError(
            f"{gpu.name} ({gpu.uuid}) is partitioned, and its parts have no energy counters; set it to SPX mode",
            Remedy.ESTIMATE,
        )
    return gpu


def _visible(uuids: Sequence[str]) -> list[int]:
    """Returns the positions of the visible GPUs.

    HIP numbers the GPUs that ROCr, the layer below it, shows. HIP treats an empty value as unset.
    """
    shown = list(range(len(uuids)))
    for name, value in _variables().items():
        entries = ",".join(_uuid(entry.strip()) if "GPU-" in entry else entry for entry in value.split(","))
        shown = [shown[i] for i in visible_devices(entries, [uuids[i] for i in shown], name)]
    return shown


def _variables() -> dict[str, str]:
    """Returns the variables that take effect, in the order in which ROCm reads them."""
    hip = next((name for name in ("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES") if os.environ.get(name)), None)
    names = (name for name in ("ROCR_VISIBLE_DEVICES", hip) if name is not None)
    return {name: os.environ[name] for name in names if name in os.environ}


def _uuid(text: str) -> str:
    """Returns a serial number in comparable form: "0x00AB" and "GPU-00ab" are "GPU-00ab"."""
    return "GPU-" + text.removeprefix("GPU-").lower().removeprefix("0x")


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value not in {"", "N/A"} else None


def _load() -> Any:
    try:
        # It prints what is missing before it fails.
        with redirect_stdout(StringIO()):
            import amdsmi  # noqa: PLC0415 - not needed on a machine without AMD GPUs
    except ModuleNotFoundError:
        raise NoDeviceError(
            "the package amdsmi is not installed, so AMD GPUs cannot be read; install the one that comes with ROCm "
            "(pip install /opt/rocm/share/amd_smi)",
            Remedy.OTHER_MONITOR,
        ) from None
    except (ImportError, OSError, KeyError, AttributeError) as error:
        raise NoDeviceError(
            f"the package amdsmi cannot load its library libamd_smi.so ({error}); its version must match ROCm's",
            Remedy.OTHER_MONITOR,
        ) from error
    try:
        amdsmi.amdsmi_init()
    except amdsmi.AmdSmiException as error:
        raise NoDeviceError(f"the AMD driver cannot be reached ({_info(error)})", Remedy.OTHER_MONITOR) from None
    return amdsmi


@contextmanager
def _error_context(smi: Any, what: str, *remedies: Remedy) -> Iterator[None]:
    try:
        yield
    except smi.AmdSmiException as error:
        raise MonitorError(f"{what} cannot be read: {_info(error)}", *remedies) from None


def _info(error: Exception) -> str:
    """Returns the one-line description of an error, if AMD SMI has one."""
    info = getattr(error, "get_error_info", None)
    return str(info() if callable(info) else error)
