"""One GPU as AMD SMI knows it: SI units out, MonitorError when something fails, amdsmi imported on first use.

Names, units and "N/A" are those of https://rocm.docs.amd.com/projects/amdsmi; older versions differ in places.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from io import StringIO
from operator import itemgetter
from typing import Any

from wattwise.errors import MonitorError
from wattwise.monitor.gpu import INSTEAD
from wattwise.monitor.visible import chosen_devices, visible_devices

# What stands for "not known" in fields of 16 and of 32 bits, where no "N/A" does.
_UNKNOWN_WATTS = 0xFFFF
# Below this a limit is one in watts, as guests of a hypervisor are told it: nobody limits a GPU to 10 mW.
_LOWEST_LIMIT_MICROWATTS = 10_000


class AmdGpu:
    """A GPU by its processor handle.

    Attributes:
        name: Its model, such as "AMD Instinct MI300X".
        uuid: "GPU-" and its serial number, as ROCR_VISIBLE_DEVICES has it.
        position: Its number in HIP where no GPU is hidden; None where AMD SMI does not tell.
        is_split: Whether it is partitioned into several devices.
        has_energy_counter: Whether it counts energy itself.
    """

    def __init__(self, smi: Any, handle: Any, number: int) -> None:
        self._smi = smi
        self._handle = handle
        self._called = f"AMD GPU {number}"
        asic = self._asked("amdsmi_get_gpu_asic_info") or {}
        place = self._asked("amdsmi_get_gpu_enumeration_info") or {}
        self.name = _told(asic.get("market_name")) or "AMD GPU"
        self.uuid = _uuid(_told(place.get("hip_uuid")) or _told(asic.get("asic_serial")) or str(number))
        self._called = f"{self.name} ({self.uuid})"
        self.position = place["hip_id"] if isinstance(place.get("hip_id"), int) else None
        self.is_split = (_told(self._asked("amdsmi_get_gpu_compute_partition")) or "SPX") != "SPX"
        self.has_energy_counter = self._counted() is not None

    def energy_joules(self) -> float:
        """Joules since the driver was loaded."""
        microjoules = self._counted()
        if microjoules is None:
            raise self._mute("its energy")
        return microjoules / 1e6

    def power_watts(self) -> float:
        """Watts that it draws now, or drew on average of late where it tells no more."""
        info = self._asked("amdsmi_get_power_info") or {}
        told = [info.get(field) for field in ("current_socket_power", "average_socket_power", "socket_power")]
        watts = [float(value) for value in told if isinstance(value, int) and 0 <= value < _UNKNOWN_WATTS]
        if not watts:
            raise self._mute("its power")
        return next(filter(None, watts), 0.0)

    def max_power_watts(self) -> float:
        """The highest power limit that it may be set to; where limits are fixed, the one in force."""
        info = self._asked("amdsmi_get_power_cap_info") or {}
        for limit in (info.get("max_power_cap"), info.get("power_cap")):
            if isinstance(limit, int) and limit > 0:
                return limit / 1e6 if limit >= _LOWEST_LIMIT_MICROWATTS else float(limit)
        raise self._mute("its power limit", "give the job gpu=GpuConfig(max_power_watts=..., ...)")

    def _counted(self) -> float | None:
        count = self._asked("amdsmi_get_energy_count") or {}
        # Called "power" before ROCm 6.2.
        steps, microjoules = count.get("energy_accumulator", count.get("power")), count.get("counter_resolution")
        if not isinstance(steps, int) or not isinstance(microjoules, float | int) or microjoules <= 0:
            return None
        return steps * float(microjoules)

    def _mute(self, what: str, instead: str = INSTEAD) -> MonitorError:
        return MonitorError(f"{self._called} does not tell {what}; {instead}")

    def _asked(self, function: str) -> Any | None:
        """The answer, or None from a GPU, a driver or an amdsmi that has none."""
        query: Callable[[Any], Any] | None = getattr(self._smi, function, None)
        if query is None:
            return None
        wrapper = self._smi.amdsmi_wrapper
        silent = {wrapper.AMDSMI_STATUS_NOT_SUPPORTED, wrapper.AMDSMI_STATUS_NOT_YET_IMPLEMENTED}
        with _explained(self._smi, self._called):
            try:
                return query(self._handle)
            except self._smi.AmdSmiLibraryException as error:
                if error.get_error_code() in silent:
                    return None
                raise


def visible_amd_gpus(gpu_indices: Sequence[int] | None = None) -> list[AmdGpu]:
    """The GPUs that ROCm's variables show, or those of them that `gpu_indices` choose.

    Args:
        gpu_indices: Which of the visible GPUs, from 0; None for all of them.

    Raises:
        MonitorError: There is no amdsmi, driver or such GPU, a GPU is asked for twice, or one is partitioned.
    """
    smi = _load()
    with _explained(smi, "the number of AMD GPUs"):
        handles = smi.amdsmi_get_processor_handles()
    gpus = [_open(smi, handle, number) for number, handle in enumerate(handles)]
    positions = [gpu.position for gpu in gpus if isinstance(gpu, AmdGpu) and gpu.position is not None]
    if len(positions) == len(gpus):
        gpus = [gpu for _, gpu in sorted(zip(positions, gpus, strict=True), key=itemgetter(0))]
    visible = _visible([gpu.uuid if isinstance(gpu, AmdGpu) else "" for gpu in gpus])
    if not visible:
        shown = " and ".join(f"{name}={value!r}" for name, value in _variables().items())
        raise MonitorError(f"this machine has no AMD GPU{shown and f' that {shown} shows'}; {INSTEAD}")
    return [_usable(gpus[i]) for i in chosen_devices(visible, gpu_indices)]


def _open(smi: Any, handle: Any, number: int) -> AmdGpu | MonitorError:
    """The GPU, or why there is none: a broken one is nobody's business but of those who choose it."""
    try:
        return AmdGpu(smi, handle, number)
    except MonitorError as error:
        return error


def _usable(gpu: AmdGpu | MonitorError) -> AmdGpu:
    if isinstance(gpu, MonitorError):
        raise gpu
    if gpu.is_split:
        raise MonitorError(
            f"{gpu.name} ({gpu.uuid}) is partitioned, and no energy is counted for each part; set it to SPX mode, or "
            "pass monitor=EstimateMonitor(watts=...)"
        )
    return gpu


def _visible(uuids: Sequence[str]) -> list[int]:
    """Positions of the visible GPUs: HIP numbers what the layer below it, ROCr, shows. To HIP, empty is unset."""
    shown = list(range(len(uuids)))
    for name, value in _variables().items():
        entries = ",".join(_uuid(entry.strip()) if "GPU-" in entry else entry for entry in value.split(","))
        shown = [shown[i] for i in visible_devices(entries, [uuids[i] for i in shown], name)]
    return shown


def _variables() -> dict[str, str]:
    """The variables in force, in the order in which ROCm reads them."""
    hip = next((name for name in ("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES") if os.environ.get(name)), None)
    names = (name for name in ("ROCR_VISIBLE_DEVICES", hip) if name is not None)
    return {name: os.environ[name] for name in names if name in os.environ}


def _uuid(text: str) -> str:
    """A serial number in the one spelling that can be compared: "0x00AB" and "GPU-00ab" are "GPU-00ab"."""
    return "GPU-" + text.removeprefix("GPU-").lower().removeprefix("0x")


def _told(value: object) -> str | None:
    return value if isinstance(value, str) and value not in {"", "N/A"} else None


def _load() -> Any:
    try:
        # It prints what it misses, before it fails.
        with redirect_stdout(StringIO()):
            import amdsmi  # noqa: PLC0415 - a machine without AMD's GPUs need not have it
    except ModuleNotFoundError:
        raise MonitorError(
            "the package amdsmi is not installed, so AMD's GPUs cannot be read; install the one that comes with ROCm "
            f"(pip install /opt/rocm/share/amd_smi), or {INSTEAD}"
        ) from None
    except (ImportError, OSError, KeyError, AttributeError) as error:
        raise MonitorError(
            f"the package amdsmi cannot load its library libamd_smi.so ({error}); it must be of the same version as "
            f"ROCm's, or {INSTEAD}"
        ) from error
    try:
        amdsmi.amdsmi_init()
    except amdsmi.AmdSmiException as error:
        raise MonitorError(f"AMD's driver cannot be reached ({_info(error)}); {INSTEAD}") from error
    return amdsmi


@contextmanager
def _explained(smi: Any, what: str) -> Iterator[None]:
    try:
        yield
    except smi.AmdSmiException as error:
        raise MonitorError(f"{what} cannot be read: {_info(error)}") from error


def _info(error: Exception) -> str:
    """What AMD SMI says in one line, where it has one."""
    info = getattr(error, "get_error_info", None)
    return str(info() if callable(info) else error)
