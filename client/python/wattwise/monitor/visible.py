"""Which GPUs CUDA shows to this process."""

from __future__ import annotations

from collections.abc import Sequence

from wattwise.errors import MonitorError, Remedy


def visible_devices(variable: str | None, uuids: Sequence[str], name: str = "CUDA_VISIBLE_DEVICES") -> list[int]:
    """Reads CUDA_VISIBLE_DEVICES as CUDA does: a number or an unambiguous start of a UUID per device.

    As in CUDA, the first entry that names no GPU hides itself and all after it.

    Args:
        variable: the variable's value; None, if it is not set, shows every GPU.
        uuids: the UUIDs ("GPU-…") of the machine's GPUs.
        name: the variable's name.

    Returns:
        Positions in `uuids`, in the order of the variable.

    Raises:
        MonitorError: if a GPU is listed twice, or a MIG slice ("MIG-…") is listed, whose energy cannot be measured.
    """
    if variable is None:
        return list(range(len(uuids)))
    visible: list[int] = []
    for entry in (part.strip() for part in variable.split(",")):
        if entry.startswith("MIG-"):
            raise MonitorError(
                f"{name}={variable} names a MIG slice, whose energy cannot be measured separately", Remedy.ESTIMATE
            )
        device = _device(entry, uuids)
        if device is None:
            break
        if device in visible:
            raise MonitorError(f"{name}={variable} names GPU {device} twice; name every GPU once")
        visible.append(device)
    return visible


def chosen_devices(visible: Sequence[int], indices: Sequence[int] | None) -> list[int]:
    """Returns the visible devices at these positions; None selects all.

    Raises:
        MonitorError: if an index is out of range or repeated, or there is none.
    """
    if indices is None:
        return list(visible)
    wrong = [i for i in indices if not 0 <= i < len(visible)]
    if wrong or not indices:
        raise MonitorError(f"gpu_indices={list(indices)} is wrong: the visible GPUs are {list(range(len(visible)))}")
    if len(set(indices)) < len(indices):
        raise MonitorError(f"gpu_indices={list(indices)} names a GPU twice; name every GPU once")
    return [visible[i] for i in indices]


def _device(entry: str, uuids: Sequence[str]) -> int | None:
    if entry.isdecimal():
        number = int(entry)
        return number if number < len(uuids) else None
    matching = [i for i, uuid in enumerate(uuids) if entry.startswith("GPU-") and uuid.startswith(entry)]
    return matching[0] if len(matching) == 1 else None
