"""The parts of a chart: marks in the units of its axes, and a table of the same data.

Each chart is a function from data to a `Chart`. Only `vega` knows how marks are drawn.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum, IntEnum
from typing import Literal, NamedTuple, TypeAlias, TypeVar
from urllib.parse import quote, urlencode

Item = TypeVar("Item")

GOOD, INK = "#0e8a7a", "#7d8590"
"""The colors of marks that belong to no series."""
PAIR = ((GOOD, "circle"), ("#be4a98", "square"))
"""The color and the symbol of each of two jobs."""
_STOPS = ((14, 138, 122), (43, 122, 196), (122, 100, 214), (190, 74, 152), (206, 100, 40))
"""The colors of batch sizes, from small to large; each has a contrast of at least 3:1 on both backgrounds."""
_SYMBOLS = ("circle", "square", "triangle-up", "diamond", "triangle-down", "cross")
JOULES = ((1e12, "TJ"), (1e9, "GJ"), (1e6, "MJ"), (1e3, "kJ"), (1.0, "J"))
"""The units of costs, the largest first."""
MOST_ROWS = 100
"""The rows of a table: the newest ones of long tables."""
_HEADROOM = 1.1
"""The end of an axis, relative to the highest mark."""


class Look(IntEnum):
    """How a point is drawn."""

    FILLED = 0
    HOLLOW = 1
    FAILED = 2
    """Hollow, with a cross in it."""
    EXCLUDED = 3
    """Grey and struck through, with the symbol of its series."""
    HIDDEN = 4
    """Not drawn, but the pointer finds it."""
    RING = 5
    """A grey ring, which fits around another point."""
    ARROW = 6
    """A grey arrow upwards."""


class Point(NamedTuple):
    """A position in a chart, and what it says."""

    x: float | str
    """A number, or a name of the axis."""
    y: float | None
    """None makes a gap in a line."""
    series: str = ""
    """What gives it its color and its symbol; empty for none."""
    look: Look = Look.FILLED
    low: float | None = None
    high: float | None = None
    date: int | None = None
    """Seconds since 1970; None if they are unknown."""
    line: int | None = None
    """A number that tells several lines of a series apart."""
    texts: Sequence[str] = ()
    """The texts of its tooltip that do not follow from its position; the only text of a label."""
    target: str = ""
    """The end of the address to which it leads; empty if that end is `x`."""


class Source(Enum):
    """Where a line of a tooltip comes from."""

    TEXT = "the next one of the texts of the point"
    X = "x"
    SERIES = "series"
    COST = "y, as a cost"
    DATE = "date"


class Tip(NamedTuple):
    """A line of the tooltips of a mark; a point without a text has none."""

    title: str
    source: Source = Source.TEXT


@dataclass(frozen=True)
class Dots:
    """Symbols with their ranges; points above the chart are at its upper edge."""

    points: Sequence[Point]
    tips: Sequence[Tip] = ()
    address: str = ""
    """The address to which points lead, without its end; empty for none."""
    size: int = 90
    """The area of a symbol, in square pixels."""
    range_opacity: float = 1.0


@dataclass(frozen=True)
class Lines:
    """A line for each series, along the values or the lower ends of the ranges."""

    points: Sequence[Point]
    along: Literal["y", "low"] = "y"
    width: float = 1.8
    dash: Sequence[int] = ()
    color: str = ""
    """The color of points without a series."""


@dataclass(frozen=True)
class Band:
    """The area between the values of points and the lower ends of their ranges."""

    points: Sequence[Point]


@dataclass(frozen=True)
class Bars:
    """Bars from zero."""

    points: Sequence[Point]
    tips: Sequence[Tip] = ()


@dataclass(frozen=True)
class Rule:
    """A line across the whole chart, at a position on one axis."""

    axis: Literal["x", "y"]
    at: float
    dash: Sequence[int] = ()
    text: str = ""
    title: str = ""
    """The name of the text in the tooltip; empty for no tooltip."""
    in_legend: bool = False
    date: int | None = None
    """The position on an axis of dates, in seconds since 1970."""


@dataclass(frozen=True)
class Labels:
    """The texts of points, above the points, or at the top of the chart if no point has a `y`."""

    points: Sequence[Point]


Mark: TypeAlias = Dots | Lines | Band | Bars | Rule | Labels


@dataclass(frozen=True)
class Names:
    """A horizontal axis of names, in their order."""

    title: str
    names: Sequence[str]


@dataclass(frozen=True)
class Numbers:
    """A horizontal axis of numbers, as far as the marks reach; without ticks, the browser chooses them."""

    title: str
    ticks: Sequence[int] = ()
    unit: str = ""


@dataclass(frozen=True)
class Amounts:
    """A vertical axis of amounts in one unit, of the size `factor`."""

    title: str
    low: float
    high: float
    factor: float = 1.0
    unit: str = ""


@dataclass(frozen=True)
class Palette:
    """The color and the symbol of each series, and the series that the legend has."""

    title: str
    looks: dict[str, tuple[str, str]]
    shown: Sequence[str] = ()
    columns: int | None = None
    """The columns of the legend; None for as many as fit."""


@dataclass(frozen=True)
class Drawing:
    """Marks on two axes; later marks are above earlier ones. The height is in pixels."""

    x: Names | Numbers
    y: Amounts
    marks: Sequence[Mark]
    palette: Palette = field(default_factory=lambda: Palette("", {}))
    height: int = 220

    @property
    def points(self) -> Iterator[Point]:
        """The points of all marks."""
        return (point for mark in self.marks if not isinstance(mark, Rule) for point in mark.points)

    @property
    def has_dates(self) -> bool:
        """Whether all points have positions on an axis of dates, too."""
        dates = [point.date for point in self.points]
        return bool(dates) and None not in dates


class Link(NamedTuple):
    """A cell that leads to another page, whose address is relative to this page's."""

    text: str
    href: str


Cell: TypeAlias = str | Link


@dataclass(frozen=True)
class Chart:
    """A drawing and a table of its data, the newest row first."""

    name: str
    """The name of its element, such as "cost"."""
    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    drawing: Drawing | None = None
    caption: str = ""
    empty: str = ""
    """Why there is nothing to draw."""
    wide: bool = False
    struck: frozenset[int] = frozenset()
    """The indexes of rows that are struck through."""
    more_rows: int = 0
    """The number of older rows that the table leaves out."""


def batch_palette(sizes: Iterable[int], shown: Iterable[int] = ()) -> Palette:
    """Returns the looks of batch sizes, which are the same in all charts of a job.

    Args:
        sizes: the job's batch sizes.
        shown: the batch sizes that the legend has; empty for no legend.
    """
    ordered = sorted(sizes)
    last = max(1, len(ordered) - 1)
    looks = {str(size): (_color(index / last), _SYMBOLS[index % len(_SYMBOLS)]) for index, size in enumerate(ordered)}
    return Palette("batch size", looks, list(map(str, sorted(shown))))


def _color(share: float) -> str:
    """Returns the color at a share of the way from the first stop to the last one."""
    position = share * (len(_STOPS) - 1)
    low = min(int(position), len(_STOPS) - 2)
    part = position - low
    channels = (round(a + (b - a) * part) for a, b in zip(_STOPS[low], _STOPS[low + 1], strict=True))
    return "#" + "".join(f"{channel:02x}" for channel in channels)


def batch_axis(sizes: Iterable[int]) -> Names:
    """Returns a horizontal axis of batch sizes."""
    return Names("batch size", list(map(str, sorted(sizes))))


def whole_axis(title: str, points: Iterable[Point]) -> Numbers:
    """Returns a horizontal axis of whole numbers that covers the points, with at most 12 ticks at round steps."""
    places = [float(point.x) for point in points]
    low, high = min(places), max(places)
    steps = (number * 10**power for power in range(9) for number in (1, 2, 5))
    step = next(step for step in steps if (high - low) / step <= 11)
    ticks = list(range(math.ceil(low / step) * step, math.floor(high) + 1, step))
    first = math.ceil(low)
    return Numbers(title, ticks if ticks and ticks[0] - first <= step / 3 else [first, *ticks])


def amount_axis(
    title: str,
    values: Iterable[float],
    *,
    units: Sequence[tuple[float, str]] = JOULES,
    low: float | None = None,
    high: float | None = None,
) -> Amounts:
    """Returns a vertical axis from zero to above the highest value.

    Args:
        title: what it shows.
        values: all values that the chart shows.
        units: factors and units, the largest first; an empty unit is none.
        low: where it begins instead, if some values are below; negative.
        high: where it ends instead, if some values are above.
    """
    found = [value for value in values if math.isfinite(value)]
    bottom = min([0.0, *found]) * _HEADROOM if low is None else low
    top = max([0.0, *found]) * _HEADROOM if high is None else high
    if top <= bottom:
        top = bottom + 1.0
    size = max(abs(bottom), abs(top))
    factor, unit = next(((factor, unit) for factor, unit in units if size >= factor), units[-1])
    return Amounts(title, bottom, top, factor, unit)


def thinned(items: Sequence[Item], most: int) -> list[Item]:
    """Returns about `most` of the items, or all if there are fewer; the last one is always among them."""
    step = max(1, -(-len(items) // most))
    return [*items[:-1:step], *items[-1:]]


def page(path: str, **parameters: object) -> str:
    """Returns a page's path and query, relative to those of this page; the parameters may hold any character."""
    return f"{path}?{urlencode(parameters, quote_via=quote)}" if parameters else path
