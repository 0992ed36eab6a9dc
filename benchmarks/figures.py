"""Turns measurements into a table of ratios."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

Samples = dict[str, list[float]]
"""Per kind of call and round: seconds, or calls per second."""


@dataclass(frozen=True)
class Figure:
    """One line of the table.

    Attributes:
        name: The measurement and its baseline.
        value: The result.
        target: None if there is no target.
        at_least: Whether larger is better.
        unit: The unit of the value; empty for a ratio.
    """

    name: str
    value: float
    target: float | None = None
    at_least: bool = False
    unit: str = ""

    @property
    def met(self) -> bool:
        """Whether the target is met."""
        if self.target is None:
            return True
        return self.value >= self.target if self.at_least else self.value <= self.target

    def line(self) -> str:
        """Returns the row of the table."""
        unit = f" {self.unit}" if self.unit else ""
        value = f"{self.value:.2f}{unit}" if self.value < 10 else f"{self.value:.0f}{unit}"
        target = "" if self.target is None else f"{'≥' if self.at_least else '≤'} {self.target:g}{unit}"
        return f"{self.name:<72} {value:>9}   {target:<8} {'' if self.met else 'missed'}".rstrip()


def ratio(samples: Samples, of: str, to: Callable[[dict[str, float]], float]) -> float:
    """Returns the median over rounds of one kind divided by `to` of the same round."""
    rounds = [dict(zip(samples, values, strict=True)) for values in zip(*samples.values(), strict=True)]
    return float(median(each[of] / to(each) for each in rounds))


def medians(samples: Samples) -> Sequence[str]:
    """Returns the medians behind the ratios, as text."""
    lines = []
    for name, values in samples.items():
        value = median(values)
        lines.append(f"  {name:<14} {f'{value * 1e3:8.3f} ms' if value < 10 else f'{value:8.0f} per second'}")
    return lines
