"""The memory of a process."""

from __future__ import annotations

from pathlib import Path


def resident(pid: int) -> float:
    """Resident memory in megabytes."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * 4096 / 1e6
