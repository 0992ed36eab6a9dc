"""A stand-in for CUDA at the border between PyTorch's Python code and its C library: a machine with four GPUs."""

from __future__ import annotations

from typing import Any

import pytest

RESERVED = "reserved_bytes"


class CudaEdge:
    """Four CUDA devices under the real `torch.cuda`; this process computes on number 1 and has memory on number 3.

    Attributes:
        waited: The devices that were synchronized, in order.
    """

    def __init__(self, torch: Any, patch: pytest.MonkeyPatch, *, initialized: bool = True) -> None:
        self.waited: list[int] = []
        self._current = 1
        for name, answer in {
            "_cuda_getDeviceCount": lambda: 4,
            "_cuda_getDevice": lambda: self._current,
            "_cuda_memoryStats": lambda device: {RESERVED: {"all": {"current": 1 << 20 if device == 3 else 0}}},
            "_cuda_synchronize": lambda: self.waited.append(self._current),
        }.items():
            patch.setattr(torch._C, name, answer, raising=False)  # noqa: SLF001 - PyTorch's
        # Bound from the C library while PyTorch is imported.
        patch.setattr(torch.cuda, "_exchange_device", self._exchange)
        patch.setattr(torch.cuda, "_maybe_exchange_device", self._exchange)
        patch.setattr(torch.cuda, "_is_in_bad_fork", lambda: False)
        patch.setattr(torch.cuda, "_cached_device_count", None)
        patch.setattr(torch.cuda, "_initialized", initialized)

    def _exchange(self, device: int) -> int:
        previous, self._current = self._current, device
        return previous
