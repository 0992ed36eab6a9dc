"""Which GPUs CUDA shows to this process."""

from __future__ import annotations

from collections.abc import Sequence

from wattwise.errors import MonitorError


def visible_devices(variable: str | None, uuids: Sequence[str]) -> list[int]:
    """Reads CUDA_VISIBLE_DEVICES as CUDA does: a number or an unambiguous start of a UUID per device.

    As in CUDA, the first entry that names no GPU hides itself and all after it.

    Args:
        variable: The variable's value; None when it is not set, which shows every GPU.
        uuids: The UUIDs ("GPU-…") of the machine's GPUs, in the driver's order.

    Returns:
        The positions in `uuids` of the visible GPUs, in the order of the variable.

    Raises:
        MonitorError: A GPU is listed twice, or a slice of one ("MIG-…") is listed, which has no meter of its own.
    """
    if variable is None:
        return list(range(len(uuids)))
    visible: list[int] = []
    for entry in (part.strip() for part in variable.split(",")):
        if entry.startswith("MIG-"):
            raise MonitorError(
                f"CUDA_VISIBLE_DEVICES={variable} names a MIG slice, whose energy no GPU measures apart from the "
                "others'; pass monitor=EstimateMonitor(watts=...)"
            )
        device = _device(entry, uuids)
        if device is None:
            break
        if device in visible:
            raise MonitorError(f"CUDA_VISIBLE_DEVICES={variable} names GPU {device} twice; name every GPU once")
        visible.append(device)
    return visible


def _device(entry: str, uuids: Sequence[str]) -> int | None:
    if entry.isdecimal():
        number = int(entry)
        return number if number < len(uuids) else None
    matching = [i for i, uuid in enumerate(uuids) if entry.startswith("GPU-") and uuid.startswith(entry)]
    return matching[0] if len(matching) == 1 else None
