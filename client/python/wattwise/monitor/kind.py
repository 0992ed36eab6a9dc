"""The kinds of a monitor: what its energy comes from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from wattwise.errors import MonitorError
from wattwise.spec import to_number

if TYPE_CHECKING:
    from typing import TypeGuard

    from wattwise.monitor.window import Monitor

ESTIMATE = "estimate"
MOST_KINDS = 8
"""The most kinds that a server accepts for one trial."""

_LONGEST = 50
_NEEDED = ("begin_window", "end_window", "gpu_indices")


class EnergySource(Protocol):
    """What `MonitorKinds` and the message `v1.Monitor` have in common."""

    @property
    def kinds(self) -> Sequence[str]:
        """The kinds of monitor, in the order in which they were first used."""

    @property
    def estimated(self) -> bool:
        """Whether some of the energy is estimated rather than measured."""

    @property
    def partly(self) -> bool:
        """Whether only part of it is estimated."""


@dataclass(frozen=True)
class MonitorKinds:
    """What energy comes from; as text, such as "nvml+rapl".

    Attributes:
        kinds: The kinds of monitor, in the order in which they were first used.
        estimated: Whether some of the energy is estimated rather than measured.
        partly: Whether only part of it is estimated.
    """

    kinds: tuple[str, ...] = ()
    estimated: bool = False
    partly: bool = False

    def __str__(self) -> str:
        return monitor_text(self)

    def with_failure(self) -> MonitorKinds:
        """These kinds after the monitor failed for a while and part of the energy was estimated."""
        return MonitorKinds(self.kinds, estimated=True, partly=self.partly or not self.estimated)

    @staticmethod
    def copy(source: EnergySource) -> MonitorKinds:
        """The kinds of a message or of another source."""
        return MonitorKinds(tuple(source.kinds), source.estimated, source.partly)

    @staticmethod
    def from_json(document: object) -> MonitorKinds | None:
        """The kinds that `dataclasses.asdict` made a JSON object of; None if it is none."""
        match document:
            case {"kinds": [*kinds], "estimated": bool(estimated), "partly": bool(partly)}:
                return MonitorKinds(tuple(kinds), estimated, partly) if all(map(is_kind, kinds)) else None
        return None

    @staticmethod
    def of(kinds: Sequence[str]) -> MonitorKinds:
        """The kinds of working monitors, of which only "estimate" estimates."""
        kinds = tuple(dict.fromkeys(kinds))
        estimated = ESTIMATE in kinds
        return MonitorKinds(kinds, estimated, estimated and len(kinds) > 1)


def is_kind(kind: object) -> TypeGuard[str]:
    """Whether this says how a monitor measures, in a few characters that can be shown."""
    return isinstance(kind, str) and kind.isprintable() and 0 < len(kind) <= _LONGEST


def monitor_text(source: EnergySource) -> str:
    """What energy comes from, in a few characters.

    Returns:
        Such as "nvml+rapl", "estimate" or "nvml (partly estimated)"; empty if it is unknown.
    """
    kinds = "+".join(source.kinds)
    if not source.estimated or ESTIMATE in source.kinds:
        return kinds
    return f"{kinds} ({'partly ' if source.partly else ''}estimated)"


def monitor_kinds(monitor: Monitor) -> MonitorKinds:
    """The kinds of a monitor, as they are shown beside its energy.

    Args:
        monitor: Wattwise's monitors have a `kind`, and any other may have one.

    Returns:
        Its `kind`; without one "zeus" for a monitor of the package `zeus`, else "custom". All kinds of a
        `CombinedMonitor`.

    Raises:
        MonitorError: It is not a monitor, its `kind` is not a name that can be shown, or its `max_power_watts` is not a
            power.
    """
    if isinstance(monitor, type) or not all(hasattr(monitor, name) for name in _NEEDED):
        raise MonitorError(
            f"{monitor!r} is not a monitor; pass an instance, such as NvmlMonitor() or EstimateMonitor(watts=150)"
        )
    own = getattr(monitor, "max_power_watts", None)
    if own is not None and not to_number(own) > 0:
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
        f"the kind of {monitor!r} is {kind!r}; use 1 to {_LONGEST} printable characters that say how it "
        'measures, such as kind = "wall-monitor", or leave it out'
    )
