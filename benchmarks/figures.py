"""From what was measured to a table of ratios."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

Measured = dict[str, list[float]]
"""Round by round, what each kind took in seconds, or did a second."""


@dataclass(frozen=True)
class Figure:
    """One line of the table.

    Attributes:
        name: What was measured, and against what.
        value: The figure.
        reach: What it is to reach; None for one that is only told.
        at_least: Whether more is better.
        unit: Of the value; empty for a ratio.
    """

    name: str
    value: float
    reach: float | None = None
    at_least: bool = False
    unit: str = ""

    @property
    def met(self) -> bool:
        """Whether the figure is what it is to be."""
        if self.reach is None:
            return True
        return self.value >= self.reach if self.at_least else self.value <= self.reach

    def line(self) -> str:
        """The figure for people."""
        unit = f" {self.unit}" if self.unit else ""
        value = f"{self.value:.2f}{unit}" if self.value < 10 else f"{self.value:.0f}{unit}"
        reach = "" if self.reach is None else f"{'≥' if self.at_least else '≤'} {self.reach:g}{unit}"
        return f"{self.name:<72} {value:>9}   {reach:<8} {'' if self.met else 'missed'}".rstrip()


def ratio(measured: Measured, of: str, to: Callable[[dict[str, float]], float]) -> float:
    """The median over rounds of one kind to what `to` makes of the same round."""
    rounds = [dict(zip(measured, values, strict=True)) for values in zip(*measured.values(), strict=True)]
    return float(median(each[of] / to(each) for each in rounds))


def floors(measured: Measured) -> Sequence[str]:
    """What the ratios stand on, in words."""
    middle = {name: median(values) for name, values in measured.items()}
    return [f"  {name:<14} {_amount(value)}" for name, value in middle.items()]


def _amount(value: float) -> str:
    return f"{value * 1e3:8.3f} ms" if value < 10 else f"{value:8.0f} a second"
