"""Waits for work that PyTorch or JAX has queued, so that a window holds its own work and no other's.

Neither is imported here, nor set going where it is merely imported.
"""

from __future__ import annotations

import sys
from typing import Any


def synchronize() -> None:
    """Waits for what PyTorch has queued on this process's GPUs and for every array that JAX is still computing.

    Does nothing for the one that is not imported, or not in use.
    """
    torch, jax = sys.modules.get("torch"), sys.modules.get("jax")
    if torch is not None:
        _wait_for_torch(torch)
    if jax is not None:
        _wait_for_jax(jax)


def _wait_for_torch(torch: Any) -> None:
    # Absent while another thread is still importing PyTorch.
    cuda = getattr(torch, "cuda", None)
    if cuda is None or not cuda.is_initialized():
        return
    # Synchronising a device that this process has not touched would open a context there and take its memory.
    touched = {i for i in range(cuda.device_count()) if cuda.memory_reserved(i)}
    for device in sorted(touched | {cuda.current_device()}):
        cuda.synchronize(device)


def _wait_for_jax(jax: Any) -> None:
    # Asking for arrays would start JAX, which takes most of a GPU's memory as it starts.
    bridge = sys.modules.get("jax._src.xla_bridge")
    started = getattr(bridge, "backends_are_initialized", None)
    if hasattr(jax, "live_arrays") and (started is None or started()):
        jax.block_until_ready(jax.live_arrays())
