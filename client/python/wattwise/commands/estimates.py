"""The mark that distinguishes estimated joules from measured ones, wherever they are shown."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from wattwise.monitor.kind import EnergySource


def estimate_mark(*sources: EnergySource) -> str:
    """The mark behind joules that come from these sources.

    Args:
        sources: Monitors of trials and jobs (`v1.Monitor`) or `MonitorKinds`; unset ones do not count.

    Returns:
        " (estimate)" if all of it is estimated, " (partly estimate)" if some is, else nothing.
    """
    known = [source for source in sources if source.kinds]
    if not any(source.estimated for source in known):
        return ""
    wholly = all(source.estimated and not source.partly for source in known)
    return " (estimate)" if wholly else " (partly estimate)"
