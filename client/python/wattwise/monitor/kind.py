"""The kinds of a monitor: what its energy comes from."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, TypeAlias

from wattwise import v1
from wattwise.errors import MonitorError
from wattwise.rules import MAX_KIND_LENGTH, MAX_KINDS, finite, is_kind

if TYPE_CHECKING:
    from wattwise.monitor.window import Monitor

ESTIMATE = "estimate"
_NEEDED = ("begin_window", "end_window", "gpu_indices")


class EnergyQuality(str, Enum):
    """How much of an energy was measured."""

    MEASURED = "measured"
    PARTLY_ESTIMATED = "partly estimated"
    ESTIMATED = "estimated"


@dataclass(frozen=True)
class MonitorKinds:
    """What energy comes from; as text, such as "nvml+rapl".

    Attributes:
        kinds: the kinds of monitor, in the order in which they were first used.
        quality: how much of the energy was measured; MEASURED if there are no kinds.
    """

    kinds: tuple[str, ...] = ()
    quality: EnergyQuality = EnergyQuality.MEASURED

    def __str__(self) -> str:
        return monitor_text(self)

    def with_failure(self) -> MonitorKinds:
        """Returns these kinds after the monitor failed for a while and part of the energy was estimated."""
        estimated = self.quality is EnergyQuality.ESTIMATED
        return MonitorKinds(self.kinds, self.quality if estimated else EnergyQuality.PARTLY_ESTIMATED)

    def to_message(self) -> v1.Monitor:
        """Returns the kinds as a message."""
        return v1.Monitor(kinds=self.kinds, quality=v1.EnergyQuality.Value(f"ENERGY_QUALITY_{self.quality.name}"))

    @staticmethod
    def of_message(message: v1.Monitor) -> MonitorKinds:
        """Returns the kinds of a message."""
        return MonitorKinds(tuple(message.kinds), energy_quality(message))

    @staticmethod
    def from_json(document: object) -> MonitorKinds | None:
        """Returns the kinds that `dataclasses.asdict` made a JSON object of; None if it is none."""
        match document:
            case {"kinds": [*kinds], "quality": str(quality)} if all(map(is_kind, kinds)) and quality in _QUALITIES:
                return MonitorKinds(tuple(kinds), EnergyQuality(quality))
        return None

    @staticmethod
    def of_text(text: str) -> MonitorKinds:
        """Returns the kinds that `monitor_text` has written as this text.

        Raises:
            ValueError: if it is not such a text.
        """
        names, bracket, quality = text.removesuffix(")").partition(" (")
        kinds = tuple(name.strip() for name in names.split("+"))
        if not all(map(is_kind, kinds)) or (bracket and quality not in _QUALITIES):
            raise ValueError("is not a monitor; write it like nvml, nvml+rapl, estimate or nvml (partly estimated)")
        if len(kinds) > MAX_KINDS:
            raise ValueError(f"has {len(kinds)} kinds; use at most {MAX_KINDS}")
        return MonitorKinds(kinds, EnergyQuality(quality)) if bracket else MonitorKinds.of(kinds)

    @staticmethod
    def of(kinds: Sequence[str]) -> MonitorKinds:
        """Returns the kinds of working monitors, of which only "estimate" estimates."""
        kinds = tuple(dict.fromkeys(kinds))
        if ESTIMATE not in kinds:
            return MonitorKinds(kinds)
        return MonitorKinds(kinds, EnergyQuality.PARTLY_ESTIMATED if len(kinds) > 1 else EnergyQuality.ESTIMATED)


EnergySource: TypeAlias = "MonitorKinds | v1.Monitor"

_QUALITIES = frozenset(quality.value for quality in EnergyQuality)
_MEASURED = {
    v1.ENERGY_QUALITY_MEASURED: EnergyQuality.MEASURED,
    v1.ENERGY_QUALITY_PARTLY_ESTIMATED: EnergyQuality.PARTLY_ESTIMATED,
}


def energy_quality(source: EnergySource) -> EnergyQuality:
    """Returns how much of an energy was measured; a value that this version does not know counts as ESTIMATED."""
    if isinstance(source, MonitorKinds):
        return source.quality
    return _MEASURED.get(source.quality, EnergyQuality.ESTIMATED) if source.kinds else EnergyQuality.MEASURED


def monitor_text(source: EnergySource) -> str:
    """Returns what energy comes from, in a few characters.

    Returns:
        Such as "nvml+rapl", "estimate" or "nvml (partly estimated)"; empty if it is unknown.
    """
    kinds = "+".join(source.kinds)
    quality = energy_quality(source)
    return kinds if quality is EnergyQuality.MEASURED or ESTIMATE in source.kinds else f"{kinds} ({quality.value})"


def monitor_kinds(monitor: Monitor) -> MonitorKinds:
    """Returns the kinds of a monitor, as they are shown beside its energy.

    Args:
        monitor: Wattwise's monitors have a `kind`, and any other may have one.

    Returns:
        Its `kind`; without one "zeus" for a monitor of the package `zeus`, else "custom". All kinds of a
        `CombinedMonitor`.

    Raises:
        MonitorError: if it is not a monitor, its `kind` is not a name that can be shown, or its `max_power_watts` is
            not a power.
    """
    if isinstance(monitor, type) or not all(hasattr(monitor, name) for name in _NEEDED):
        raise MonitorError(
            f"{monitor!r} is not a monitor; pass an instance, such as NvmlMonitor() or EstimateMonitor(watts=150)"
        )
    own = getattr(monitor, "max_power_watts", None)
    if own is not None and not (finite(own) > 0 or own == math.inf):
        raise MonitorError(
            f"the max_power_watts of {monitor!r} is {own!r}; use the highest power that it can measure in watts, above "
            "0, or leave it out"
        )
    combined = getattr(monitor, "kinds", None)
    if isinstance(combined, MonitorKinds):
        return combined
    kind = getattr(monitor, "kind", None)
    if kind is None:
        is_zeus = any(part.__module__.partition(".")[0] == "zeus" for part in type(monitor).__mro__)
        return MonitorKinds(("zeus" if is_zeus else "custom",))
    if is_kind(kind):
        return MonitorKinds.of([kind])
    raise MonitorError(
        f"the kind of {monitor!r} is {kind!r}; use 1 to {MAX_KIND_LENGTH} printable characters that say how it "
        'measures, such as kind = "wall-monitor", or leave it out'
    )
