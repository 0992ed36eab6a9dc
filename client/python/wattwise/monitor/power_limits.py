"""Power limits of GPUs through NVML: read, set, and put back. Watts here, milliwatts there."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

from wattwise.errors import MonitorError
from wattwise.monitor.gpu import Gpu, visible_gpus

_logger = logging.getLogger(__name__)

_PERMISSION = (
    "setting power limits takes root (or CAP_SYS_ADMIN): run the training as root, in a container as "
    "privileged, or have an administrator set the limit with `nvidia-smi --power-limit`"
)


class GpuPowerLimit:
    """The power limit of one GPU.

    Attributes:
        name: The GPU's model and UUID.
        uuid: "GPU-…".
        lowest_watts: The lowest limit that it may be set to.
        highest_watts: The highest.
        default_watts: What it has when nobody has set it.

    Raises:
        MonitorError: It has no power limit that can be read.
    """

    def __init__(self, gpu: Gpu) -> None:
        import pynvml  # noqa: PLC0415 - there, since there is a GPU; a machine without need not have it

        self._nvml: Any = pynvml
        self.name, self.uuid = f"{gpu.name} ({gpu.uuid})", gpu.uuid
        self._handle = self._asked(pynvml.nvmlDeviceGetHandleByUUID, gpu.uuid)
        lowest, highest = self._asked(pynvml.nvmlDeviceGetPowerManagementLimitConstraints, self._handle)
        self.lowest_watts, self.highest_watts = int(lowest) / 1e3, int(highest) / 1e3
        self.default_watts = int(self._asked(pynvml.nvmlDeviceGetPowerManagementDefaultLimit, self._handle)) / 1e3

    def watts(self) -> float:
        """The limit that it is set to.

        Raises:
            MonitorError: It cannot be read.
        """
        return int(self._asked(self._nvml.nvmlDeviceGetPowerManagementLimit, self._handle)) / 1e3

    def set_watts(self, watts: float) -> None:
        """Sets the limit.

        Args:
            watts: From the lowest to the highest.

        Raises:
            MonitorError: This process may not, or the GPU refused; the message says what to do.
        """
        self._asked(self._nvml.nvmlDeviceSetPowerManagementLimit, self._handle, round(watts * 1e3))

    def _asked(self, call: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return call(*arguments)
        except self._nvml.NVMLError_NoPermission:
            raise MonitorError(f"no permission to set the power limit of {self.name}; {_PERMISSION}") from None
        except self._nvml.NVMLError as error:
            doing = call.__name__.removeprefix("nvmlDevice")
            raise MonitorError(f"the power limit of {self.name} cannot be used ({doing}: {error})") from error


class PowerLimits:
    """The power limits of a trial's GPUs as one: all get the same, and each gets its own back.

    Args:
        gpu_indices: The GPUs, numbered from 0 among those that CUDA_VISIBLE_DEVICES shows.

    Attributes:
        lowest_watts: The lowest limit that all of them may be set to.
        highest_watts: The highest.

    Raises:
        MonitorError: There is no driver or no such GPU, one has no power limit, or they have none in common.
    """

    def __init__(self, gpu_indices: Sequence[int]) -> None:
        self._gpus = [GpuPowerLimit(gpu) for gpu in visible_gpus(gpu_indices)]
        self._before = [gpu.watts() for gpu in self._gpus]
        self.lowest_watts = max(gpu.lowest_watts for gpu in self._gpus)
        self.highest_watts = min(gpu.highest_watts for gpu in self._gpus)
        self._touched = self._over = False
        if self.lowest_watts > self.highest_watts:
            names = ", ".join(gpu.name for gpu in self._gpus)
            raise MonitorError(f"{names} have no power limit in common; train on GPUs of one model")
        for gpu, watts in zip(self._gpus, self._before, strict=True):
            if watts < gpu.default_watts:
                _logger.info(
                    "%s is limited to %g W, below its default of %g W: set so on purpose, or left by a process that "
                    "was killed",
                    *(gpu.name, watts, gpu.default_watts),
                )

    def describe(self) -> str:
        """The limits of before, as text."""
        return ", ".join(f"{watts:g} W" for watts in self._before)

    def check_permission(self) -> None:
        """Sets every GPU to the limit that it has.

        Raises:
            MonitorError: This process may not set limits; the message says what that takes.
        """
        for gpu, watts in zip(self._gpus, self._before, strict=True):
            gpu.set_watts(watts)

    def set(self, watts: float) -> float:
        """Sets all GPUs to one limit, or to the nearest that all of them may be set to; to none after `restore`.

        Returns:
            The limit that they have now, in watts.

        Raises:
            MonitorError: One of them refused; some may have been set.
        """
        watts = min(max(watts, self.lowest_watts), self.highest_watts)
        self._touched = True
        for gpu in self._gpus:
            if not self._over:
                gpu.set_watts(watts)
        if self._over:
            # A signal handler may have restored them while they were being set.
            self._put_back()
        return watts

    def restore(self) -> None:
        """Gives every GPU its limit of before, if any was set, and sets none any more; warns of what cannot be."""
        self._over = True
        if self._touched:
            self._put_back()
            self._touched = False

    def _put_back(self) -> None:
        for gpu, watts in zip(self._gpus, self._before, strict=True):
            _put_back(gpu, watts)


def _put_back(gpu: GpuPowerLimit, watts: float) -> None:
    try:
        gpu.set_watts(watts)
    except MonitorError as error:
        _logger.warning("%s; put it back with `nvidia-smi -i %s -pl %g`", error, gpu.uuid, watts)
