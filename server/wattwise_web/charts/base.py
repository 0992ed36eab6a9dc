"""What all charts share: their parts, the colors and symbols of batch sizes, axes with units, and links."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias, TypeVar
from urllib.parse import quote, urlencode

from wattwise_web.amounts import JOULES

Spec: TypeAlias = dict[str, Any]
Item = TypeVar("Item")

_SCHEMA = "https://vega.github.io/schema/vega-lite/v5.json"
# Each has a contrast of 3:1 and more on the light and the dark background.
_STOPS = ((14, 138, 122), (43, 122, 196), (122, 100, 214), (190, 74, 152), (206, 100, 40))
_SHAPES = ("circle", "square", "triangle-up", "diamond", "triangle-down", "cross")
GOOD, INK = "#0e8a7a", "#7d8590"
PAIR = (("#0e8a7a", "circle"), ("#be4a98", "square"))
"""The color and the symbol of each of two jobs."""
MOST_ROWS = 100
"""Rows of a chart's table: the newest ones of long tables."""
_HEADROOM = 1.1
"""The end of an axis, relative to the highest mark."""


class Link(NamedTuple):
    """A cell that leads to another page.

    Attributes:
        text: what it shows.
        href: the page's path and query, relative to this page's.
    """

    text: str
    href: str


Cell: TypeAlias = str | Link


@dataclass(frozen=True)
class Chart:
    """A chart and its table.

    Attributes:
        name: of its element, such as "cost".
        title: its heading.
        caption: what it shows, in a sentence or two.
        columns: the headings of its table.
        rows: the cells of its table.
        spec: the specification; None where there is nothing to draw.
        empty: why there is nothing to draw.
        wide: whether it has the page's width.
        struck: which rows are of trials that do not count.
        more_rows: how many older rows the table leaves out.
    """

    name: str
    title: str
    caption: str = ""
    columns: Sequence[str] = ()
    rows: Sequence[Sequence[Cell]] = ()
    spec: Spec | None = None
    empty: str = ""
    wide: bool = False
    struck: frozenset[int] = frozenset()
    more_rows: int = 0

    @property
    def is_empty(self) -> bool:
        """Whether it has nothing to show."""
        return self.spec is None and not self.rows and not self.empty


def base(values: list[Spec], layers: list[Spec], *, height: int = 220, computed: Sequence[Spec] = ()) -> Spec:
    """A specification whose layers share their values.

    Args:
        values: the values.
        layers: the layers.
        height: in pixels.
        computed: what the browser computes from the values, so that many of them stay small.
    """
    spec: Spec = {
        "$schema": _SCHEMA,
        "width": "container",
        "height": height,
        "data": {"name": "rows", "values": values},
        "layer": layers,
    }
    return spec | ({"transform": list(computed)} if computed else {})


def batch_encoding(sizes: Iterable[int], shown: Iterable[int] = ()) -> Spec:
    """The color and the symbol of a batch size, the same in all charts of a job.

    Args:
        sizes: the job's batch sizes.
        shown: those that the legend has; empty for no legend.
    """
    ordered = sorted(sizes)
    last = max(1, len(ordered) - 1)
    names = list(map(str, ordered))
    known = [str(size) for size in sorted(shown)]
    legend = {"title": "batch size", "values": known} if known else None
    both: Spec = {"field": "batch", "type": "nominal", "legend": legend}
    colors = [_color(index / last) for index in range(len(ordered))]
    shapes = [_SHAPES[index % len(_SHAPES)] for index in range(len(ordered))]
    return {
        "color": {**both, "scale": {"domain": names, "range": colors}},
        "shape": {**both, "scale": {"domain": names, "range": shapes}},
    }


def _color(place: float) -> str:
    position = place * (len(_STOPS) - 1)
    low = min(int(position), len(_STOPS) - 2)
    part = position - low
    channels = (round(a + (b - a) * part) for a, b in zip(_STOPS[low], _STOPS[low + 1], strict=True))
    return "#" + "".join(f"{channel:02x}" for channel in channels)


def batch_axis(sizes: Iterable[int]) -> Spec:
    """A horizontal axis of batch sizes."""
    order = list(map(str, sorted(sizes)))
    return {
        "field": "batch",
        "type": "ordinal",
        "sort": order,
        "scale": {"domain": order},
        "axis": {"title": "batch size", "labelAngle": 0, "labelOverlap": True},
    }


def number_axis(name: str, title: str, values: Iterable[float] = (), *, unit: str = "") -> Spec:
    """A horizontal axis; with values, one of whole numbers that covers them."""
    axis: Spec = {"title": title, "grid": False, "labelOverlap": True}
    places = list(values)
    if places:
        axis |= {"values": _whole_ticks(min(places), max(places)), "format": ",d"}
    if unit:
        axis["labelExpr"] = f"format(datum.value, ',~g') + ' {unit}'"
    return {"field": name, "type": "quantitative", "axis": axis, "scale": {"zero": False, "nice": False, "padding": 8}}


def _whole_ticks(low: float, high: float) -> list[int]:
    """Returns at most 12 whole numbers, at round steps."""
    steps = (number * 10**power for power in range(9) for number in (1, 2, 5))
    step = next(step for step in steps if (high - low) / step <= 11)
    ticks = list(range(math.ceil(low / step) * step, math.floor(high) + 1, step))
    first = math.ceil(low)
    return ticks if ticks and ticks[0] - first <= step / 3 else [first, *ticks]


def date_axis() -> Spec:
    """A horizontal axis of times, which takes the place of that of trials if the reader wants so."""
    return {
        "field": "date",
        "type": "temporal",
        "axis": {"title": "date (UTC)", "grid": False, "labelOverlap": True},
        "scale": {"type": "utc", "padding": 8},
    }


def with_dates(spec: Spec, values: Iterable[Spec]) -> Spec:
    """The specification with its other horizontal axis, if the time of each value is known."""
    return spec | {"usermeta": {"date": date_axis()}} if all("d" in value for value in values) else spec


def dated(values: list[Spec]) -> Spec:
    """Makes the times of values, in seconds, small; returns what computes their dates from them."""
    first = min((value["d"] for value in values if "d" in value), default=0)
    for value in values:
        if "d" in value:
            value["d"] -= first
    return {"calculate": f"isValid(datum.d) ? ({first} + datum.d) * 1000 : null", "as": "date"}


def unit_axis(
    name: str,
    title: str,
    values: Iterable[float],
    *,
    units: Sequence[tuple[float, str]] = JOULES,
    low: float | None = None,
    high: float | None = None,
) -> Spec:
    """A vertical axis from zero to above the highest value, with one unit.

    Args:
        name: the field.
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
    suffix = f" + ' {unit}'" if unit else ""
    return {
        "field": name,
        "type": "quantitative",
        "axis": {
            "title": title,
            "labelExpr": f"datum.value == 0 ? '0' : format(datum.value / {factor!r}, ',~g'){suffix}",
        },
        "scale": {"domain": [bottom, top], "nice": False, "zero": False},
    }


def joules_text(field: str) -> str:
    """An expression that writes a cost as the page does: "1.23 MJ"."""
    return f"replace(format({field}, '.3s'), regexp('([0-9])([^0-9]?)$'), '$1 $2J')"


def thinned(items: Sequence[Item], most: int) -> list[Item]:
    """Returns about so many of the items at most, the last one among them."""
    step = max(1, -(-len(items) // most))
    return [*items[:-1:step], *items[-1:]]


def tooltip(*fields: tuple[str, str]) -> list[Spec]:
    """The lines of a tooltip: fields with their names. Empty ones are left out."""
    return [{"field": name, "title": title, "type": "nominal"} for name, title in fields]


def rounded(value: float) -> float | None:
    """Rounds to five digits, which a chart cannot tell from more; returns None if the value is not finite."""
    if not math.isfinite(value):
        return None
    short = float(f"{value:.5g}")
    return int(short) if short.is_integer() else short


def page(path: str, **parameters: object) -> str:
    """A page's path and query, relative to those of this page."""
    return f"{path}?{urlencode({name: str(value) for name, value in parameters.items()}, quote_via=quote)}"


def rule(values: list[Spec], encoding: Spec, **mark: object) -> Spec:
    """A layer of lines across the chart, with values of its own."""
    return {
        "data": {"values": values},
        "mark": {"type": "rule", "color": INK, "aria": False, **mark},
        "encoding": encoding,
    }
