"""How joules that nobody measured are told from measured ones, wherever they are shown."""

from __future__ import annotations

import re

_BETWEEN_KINDS = re.compile(r"\+| then | or ")


def estimate_mark(*monitors: str) -> str:
    """What is written behind joules that come from these kinds of monitor.

    Args:
        monitors: As a trial or a job names them: "nvml", "nvml+rapl", "nvml or estimate"; empty where none was said.

    Returns:
        " (estimate)" if all of it is estimated, " (partly estimate)" if some is, else nothing.
    """
    kinds = {kind for monitor in monitors if monitor for kind in _BETWEEN_KINDS.split(monitor)}
    if "estimate" not in kinds:
        return ""
    return " (estimate)" if len(kinds) == 1 else " (partly estimate)"
