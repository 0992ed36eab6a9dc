"""Power limits of NVIDIA GPUs through NVML: read, set and restored, in watts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from wattwise.errors import MonitorError, log
from wattwise.monitor.gpu import NvidiaGpu, visible_gpus

_PERMISSION = (
    "setting power limits needs root (or CAP_SYS_ADMIN): run the training as root, in a privileged container, "
    "or have an administrator set the limit with `nvidia-smi --power-limit`"
)


class GpuPowerLimit:
    """The power limit of one GPU.

    Attributes:
        name: the GPU's model and UUID.
        uuid: "GPU-…".
        lowest_watts: the lowest limit that can be set.
        highest_watts: the highest.
        default_watts: the limit of a GPU on which none was set.

    Raises:
        MonitorError: if its power limit cannot be read.
    """

    def __init__(self, gpu: NvidiaGpu) -> None:
        import pynvml  # noqa: PLC0415 - not needed on a machine without NVIDIA GPUs

        self._nvml: Any = pynvml
        self.name, self.uuid = f"{gpu.name} ({gpu.uuid})", gpu.uuid
        self._handle = self._call(pynvml.nvmlDeviceGetHandleByUUID, gpu.uuid)
        lowest, highest = self._call(pynvml.nvmlDeviceGetPowerManagementLimitConstraints, self._handle)
        self.lowest_watts, self.highest_watts = int(lowest) / 1e3, int(highest) / 1e3
        self.default_watts = int(self._call(pynvml.nvmlDeviceGetPowerManagementDefaultLimit, self._handle)) / 1e3

    def watts(self) -> float:
        """Returns the current limit.

        Raises:
            MonitorError: if it cannot be read.
        """
        return int(self._call(self._nvml.nvmlDeviceGetPowerManagementLimit, self._handle)) / 1e3

    def set_watts(self, watts: float) -> None:
        """Sets the limit.

        Args:
            watts: from the lowest to the highest.

        Raises:
            MonitorError: if this process has no permission, or the GPU refused; the message says what to do.
        """
        self._call(self._nvml.nvmlDeviceSetPowerManagementLimit, self._handle, round(watts * 1e3))

    def _call(self, call: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return call(*arguments)
        except self._nvml.NVMLError_NoPermission:
            raise MonitorError(f"no permission to set the power limit of {self.name}; {_PERMISSION}") from None
        except self._nvml.NVMLError as error:
            doing = call.__name__.removeprefix("nvmlDevice")
            raise MonitorError(f"the power limit of {self.name} cannot be used ({doing}: {error})") from error


class PowerLimits:
    """The power limits of a trial's GPUs: all are set to the same, and each is restored to its own.

    Args:
        gpu_indices: the GPUs, numbered from 0 among those that CUDA_VISIBLE_DEVICES shows.

    Attributes:
        lowest_watts: the lowest limit that can be set on all of them.
        highest_watts: the highest.

    Raises:
        MonitorError: if there is no NVIDIA driver or no such GPU, one has no power limit, or they have none in common.
    """

    def __init__(self, gpu_indices: Sequence[int]) -> None:
        self._gpus = [GpuPowerLimit(gpu) for gpu in visible_gpus(gpu_indices)]
        self._before = [gpu.watts() for gpu in self._gpus]
        self.lowest_watts = max(gpu.lowest_watts for gpu in self._gpus)
        self.highest_watts = min(gpu.highest_watts for gpu in self._gpus)
        self._changed = self._restored = False
        if self.lowest_watts > self.highest_watts:
            names = ", ".join(gpu.name for gpu in self._gpus)
            raise MonitorError(f"{names} have no power limit in common; train on GPUs of one model")
        for gpu, watts in zip(self._gpus, self._before, strict=True):
            if watts < gpu.default_watts:
                log.info(
                    "%s is limited to %g W, below its default of %g W: set on purpose, or left by a killed process",
                    *(gpu.name, watts, gpu.default_watts),
                )

    def describe(self) -> str:
        """Returns the original limits, as text."""
        return ", ".join(f"{watts:g} W" for watts in self._before)

    def check_permission(self) -> None:
        """Sets every GPU to its current limit.

        Raises:
            MonitorError: if this process may not set limits; the message says what to do.
        """
        for gpu, watts in zip(self._gpus, self._before, strict=True):
            gpu.set_watts(watts)

    def set(self, watts: float) -> float:
        """Sets all GPUs to one limit, or to the nearest that all of them support; does nothing after `restore`.

        Returns:
            Their new limit, in watts.

        Raises:
            MonitorError: if one of them refused; others may have been set.
        """
        watts = min(max(watts, self.lowest_watts), self.highest_watts)
        self._changed = True
        for gpu in self._gpus:
            if not self._restored:
                gpu.set_watts(watts)
        if self._restored:
            # A signal handler may have restored them while they were being set.
            self._put_back()
        return watts

    def restore(self) -> None:
        """Restores the original limits, after which none can be set; logs a warning for each that fails."""
        self._restored = True
        if self._changed:
            self._put_back()
            self._changed = False

    def _put_back(self) -> None:
        for gpu, watts in zip(self._gpus, self._before, strict=True):
            try:
                gpu.set_watts(watts)
            except MonitorError as error:  # noqa: PERF203 - a few GPUs
                log.warning("%s; restore it with `nvidia-smi -i %s -pl %g`", error, gpu.uuid, watts)
