"""How much memory a process holds."""

from __future__ import annotations

from pathlib import Path


def resident(pid: int) -> float:
    """Megabytes of a process that are in memory."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * 4096 / 1e6
