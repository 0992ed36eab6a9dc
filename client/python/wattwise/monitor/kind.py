"""What kind of monitor a monitor is: the word that travels with its energy."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from wattwise.errors import MonitorError

if TYPE_CHECKING:
    from wattwise.monitor.window import Monitor

_LONGEST = 50
_JOINTS = re.compile(" then | or ")
_NEEDED = ("begin_window", "end_window", "gpu_indices")


def monitor_kind(monitor: Monitor) -> str:
    """The kind of a monitor, as it is shown wherever its energy is.

    Args:
        monitor: Ours have a `kind`, and any other may have one.

    Returns:
        Its `kind`; without one "zeus" for a monitor of the package `zeus`, else "custom".

    Raises:
        MonitorError: It is no monitor, or its `kind` is no word that can be shown.
    """
    if isinstance(monitor, type) or not all(hasattr(monitor, name) for name in _NEEDED):
        raise MonitorError(
            f"{monitor!r} is not a monitor; pass an instance, such as NvmlMonitor() or EstimateMonitor(watts=150)"
        )
    kind = getattr(monitor, "kind", None)
    if kind is None:
        return "zeus" if any(_package(part) == "zeus" for part in type(monitor).__mro__) else "custom"
    if isinstance(kind, str) and kind.isprintable() and 0 < len(kind) <= _LONGEST and not _JOINTS.search(kind):
        return kind
    raise MonitorError(
        f"the kind of {monitor!r} is {kind!r}; give it one of 1 to {_LONGEST} printable characters that says how it "
        'measures, such as kind = "wall-monitor", without " then " and " or ", which join kinds; or leave it out'
    )


def _package(part: type) -> str:
    return part.__module__.partition(".")[0]
