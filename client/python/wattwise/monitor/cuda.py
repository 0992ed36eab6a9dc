"""Waits for the GPU work that PyTorch has queued, so that a window holds its own work and no other."""

from __future__ import annotations

import sys


def synchronize() -> None:
    """Waits for this process's CUDA devices when PyTorch is loaded and uses CUDA; otherwise does nothing."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return
    # Synchronising a device that this process has not touched would open a context there and take its memory.
    touched = {i for i in range(torch.cuda.device_count()) if torch.cuda.memory_reserved(i)}
    for device in sorted(touched | {torch.cuda.current_device()}):
        torch.cuda.synchronize(device)
