"""The renderer of charts: it makes a Vega-Lite specification of a drawing, from which the browser makes an SVG.

The browser fits the axes to the width and the colors of its window. Texts and addresses that it can compute from a
point's position are not sent, so that a thousand points stay small.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any, TypeAlias

from wattwise_web.charts.marks import (
    GOOD,
    INK,
    Amounts,
    Band,
    Bars,
    Dots,
    Drawing,
    Labels,
    Lines,
    Look,
    Mark,
    Names,
    Numbers,
    Palette,
    Point,
    Rule,
    Source,
)

Spec: TypeAlias = dict[str, Any]

_EDGE = 0.96
"""Where a point is that would be above the chart, as a share of the axis."""
_EXPRESSIONS = {
    Source.X: "datum.x + ''",
    Source.SERIES: "datum.s",
    Source.COST: "datum.y === null ? '–' : replace(format(datum.y, '.3s'), regexp('([0-9])([^0-9]?)$'), '$1 $2J')",
    Source.DATE: "datum.date ? utcFormat(datum.date, '%Y-%m-%d %H:%M:%S') + ' UTC' : ''",
}
"""How the browser computes the texts that follow from the position of a point."""
_STYLES: dict[Look, Spec] = {
    Look.FILLED: {"filled": True},
    Look.HOLLOW: {"filled": False, "strokeWidth": 1.6},
    Look.FAILED: {"filled": False, "strokeWidth": 1.6},
    Look.EXCLUDED: {"filled": False, "strokeWidth": 1.6, "color": INK},
    Look.HIDDEN: {"opacity": 0},
    Look.RING: {"filled": False, "strokeWidth": 1.6, "color": INK, "shape": "circle"},
    Look.ARROW: {"filled": True, "color": INK, "shape": "triangle-up"},
}
_DATES: Spec = {
    "field": "date",
    "type": "temporal",
    "axis": {"title": "date (UTC)", "grid": False, "labelOverlap": True},
    "scale": {"type": "utc", "padding": 8},
}
"""The horizontal axis that replaces that of trials if the reader wants dates."""


def specification(drawing: Drawing) -> Spec:
    """Returns the Vega-Lite specification of a drawing."""
    renderer, marks = _Renderer(drawing), [mark for mark in drawing.marks if isinstance(mark, Rule) or mark.points]
    spec: Spec = {
        "$schema": "https://vega.github.io/schema/vega-lite/v5.json",
        "width": "container",
        "height": drawing.height,
        "layer": [layer for mark in marks for layer in renderer.layers(mark)],
        "datasets": renderer.datasets,
    }
    return spec | ({"usermeta": {"date": _DATES}} if drawing.has_dates else {})


class _Renderer:
    """The layers of one drawing, and the datasets that its layers share."""

    def __init__(self, drawing: Drawing) -> None:
        self.datasets: dict[str, list[Spec]] = {}
        self._names: dict[int, str] = {}
        self._start = min((point.date for point in drawing.points if point.date is not None), default=0)
        self._x, self._y = _horizontal(drawing.x), _vertical(drawing.y)
        self._color, self._symbol = _series(drawing.palette)
        self._edge = drawing.y.low + _EDGE * (drawing.y.high - drawing.y.low)
        self._dashes = {
            mark.text: mark.dash or (1, 0) for mark in drawing.marks if isinstance(mark, Rule) and mark.in_legend
        }

    def layers(self, mark: Mark) -> list[Spec]:
        """Returns the layers of a mark."""
        match mark:
            case Dots():
                return self._dots(mark)
            case Lines():
                line = {"type": "line", "strokeWidth": mark.width, "strokeDash": mark.dash or (1, 0), "clip": True}
                encoding: Spec = {
                    "y": self._along("l" if mark.along == "low" else "y"),
                    "color": {"value": mark.color} if mark.color else self._color,
                    "detail": {"field": "n", "type": "nominal"},
                }
                return [self._layer(mark.points, line, encoding)]
            case Band():
                area = {"type": "area", "opacity": 0.15, "color": GOOD, "clip": True}
                return [self._layer(mark.points, area, {"y": self._along("l"), "y2": {"field": "y"}})]
            case Bars():
                tooltip, texts = self._tooltip(mark)
                return [self._layer(mark.points, {"type": "bar", "color": GOOD}, {"tooltip": tooltip}, texts)]
            case Rule():
                return [self._rule(mark)]
            case Labels():
                return [self._labels(mark)]

    def _along(self, field: str) -> Spec:
        return {**self._y, "field": field}

    def _rows(self, points: Sequence[Point]) -> tuple[str, list[Spec]]:
        """Returns the name and the rows of the dataset of some points."""
        name = self._names.setdefault(id(points), f"points-{len(self._names)}")
        if name not in self.datasets:
            self.datasets[name] = [_row(point, self._start) for point in points]
        return name, self.datasets[name]

    def _layer(self, points: Sequence[Point], style: Spec, encoding: Spec, transform: Sequence[Spec] = ()) -> Spec:
        date = f"isValid(datum.d) ? ({self._start} + datum.d) * 1000 : null"
        return {
            "data": {"name": self._rows(points)[0]},
            "transform": [*([{"calculate": date, "as": "date"}] if self._start else []), *transform],
            "mark": {**style, "aria": False},
            "encoding": {"x": self._x, "y": self._y, **encoding},
        }

    def _tooltip(self, mark: Dots | Bars) -> tuple[list[Spec], list[Spec]]:
        """Returns the lines of the tooltips, and how the browser computes their texts."""
        _, rows = self._rows(mark.points)
        transform = []
        texts = zip(*(point.texts for point in mark.points), strict=True)
        for at, tip in enumerate(mark.tips):
            expression = _EXPRESSIONS.get(tip.source) or _add_texts(rows, f"t{at}", next(texts))
            if expression:
                transform.append({"calculate": expression, "as": f"t{at}"})
        lines = [{"field": f"t{at}", "title": tip.title, "type": "nominal"} for at, tip in enumerate(mark.tips)]
        return lines, transform

    def _dots(self, mark: Dots) -> list[Spec]:
        """Returns a layer for the ranges, and one or two for each look."""
        tooltip, texts = self._tooltip(mark)
        found: Spec = {"tooltip": tooltip}
        style: Spec = {"type": "point", "size": mark.size, "opacity": 1}
        if mark.address:
            found["href"], style["cursor"] = {"field": "href"}, "pointer"
            texts.append({"calculate": f"{json.dumps(mark.address)} + (datum.u || datum.x)", "as": "href"})
        if any(point.y is not None and point.y > self._edge for point in mark.points):
            found["y"] = self._along("shown")
            texts.append({"calculate": f"min(datum.y, {self._edge!r})", "as": "shown"})
        layers = []
        if any(point.high is not None for point in mark.points):
            rule = {"type": "rule", "strokeWidth": 2, "opacity": mark.range_opacity}
            ends = {"y": self._along("l"), "y2": {"field": "h"}, "color": self._color}
            layers.append(self._layer(mark.points, rule, ends, [{"filter": f"datum.k != {Look.EXCLUDED:d}"}]))
        for look in sorted({point.look for point in mark.points}):
            own = _STYLES[look]
            channels = {"color": self._color, "shape": self._symbol}
            encoding = {**found, **{name: channel for name, channel in channels.items() if name not in own}}
            transform = [{"filter": f"(datum.k || 0) == {look:d}"}, *texts]
            layers.append(self._layer(mark.points, {**style, **own}, encoding, transform))
            if look is Look.FAILED:
                cross = {**style, "type": "text", "text": "✕", "fontSize": 13}
                layers.append(self._layer(mark.points, cross, {**found, "color": self._color}, transform))
            elif look is Look.EXCLUDED:
                stroke = {**style, "shape": "stroke", "size": 4 * mark.size, "color": INK}
                layers.append(self._layer(mark.points, stroke, found, transform))
        return layers

    def _rule(self, mark: Rule) -> Spec:
        value: Spec = {mark.axis: _rounded(mark.at) if mark.axis == "y" else mark.at, "text": mark.text}
        if mark.date is not None:
            value["date"] = mark.date * 1000
        encoding: Spec = {mark.axis: {"field": "x", "type": "quantitative"} if mark.axis == "x" else self._y}
        if mark.title:
            encoding["tooltip"] = [{"field": "text", "title": mark.title, "type": "nominal"}]
        if mark.in_legend:
            encoding["strokeDash"] = {
                "field": "text",
                "type": "nominal",
                "scale": {"domain": list(self._dashes), "range": list(self._dashes.values())},
                "legend": {"title": None, "symbolType": "stroke", "symbolStrokeColor": INK, "columns": 1},
            }
        style: Spec = {"type": "rule", "color": INK, "strokeWidth": 1.5, "clip": True, "aria": False}
        if mark.dash and not mark.in_legend:
            style["strokeDash"] = mark.dash
        return {"data": {"values": [value]}, "mark": style, "encoding": encoding}

    def _labels(self, mark: Labels) -> Spec:
        at_top = all(point.y is None for point in mark.points)
        values = [{"x": point.x, "text": point.texts[0], **({} if at_top else {"y": point.y})} for point in mark.points]
        place: Spec = {"baseline": "top"} if at_top else {"baseline": "bottom", "dy": -4}
        return {
            "data": {"values": values},
            "mark": {"type": "text", "fontSize": 11, "color": INK, "aria": False, **place},
            "encoding": {"x": self._x, "y": {"value": 2} if at_top else self._y, "text": {"field": "text"}},
        }


def _horizontal(axis: Names | Numbers) -> Spec:
    if isinstance(axis, Names):
        shown: Spec = {"title": axis.title, "labelAngle": 0, "labelOverlap": True}
        names = list(axis.names)
        return {"field": "x", "type": "ordinal", "sort": names, "scale": {"domain": names}, "axis": shown}
    shown = {"title": axis.title, "grid": False, "labelOverlap": True}
    if axis.ticks:
        shown |= {"values": list(axis.ticks), "format": ",d"}
    if axis.unit:
        shown["labelExpr"] = f"format(datum.value, ',~g') + {json.dumps(f' {axis.unit}')}"
    return {"field": "x", "type": "quantitative", "axis": shown, "scale": {"zero": False, "nice": False, "padding": 8}}


def _vertical(axis: Amounts) -> Spec:
    suffix = f" + {json.dumps(f' {axis.unit}')}" if axis.unit else ""
    label = f"datum.value == 0 ? '0' : format(datum.value / {axis.factor!r}, ',~g'){suffix}"
    return {
        "field": "y",
        "type": "quantitative",
        "axis": {"title": axis.title, "labelExpr": label},
        "scale": {"domain": [axis.low, axis.high], "nice": False, "zero": False},
    }


def _series(palette: Palette) -> tuple[Spec, Spec]:
    """Returns the encodings of the color and the symbol of a series."""
    legend: Spec = {"title": palette.title, "values": list(palette.shown)}
    if palette.columns:
        legend["columns"] = palette.columns
    both: Spec = {"field": "s", "type": "nominal", "legend": legend if palette.shown else None}
    names, looks = list(palette.looks), palette.looks.values()
    return (
        {**both, "scale": {"domain": names, "range": [color for color, _ in looks]}},
        {**both, "scale": {"domain": names, "range": [symbol for _, symbol in looks]}},
    )


def _row(point: Point, start: int) -> Spec:
    """Returns a row of a dataset, in few letters; dates count from `start`."""
    value: Spec = {"x": point.x, "y": _rounded(point.y)}
    if point.series:
        value["s"] = point.series
    if point.look:
        value["k"] = point.look
    if point.low is not None:
        value["l"] = _rounded(point.low)
    if point.high is not None:
        value["h"] = _rounded(point.high)
    if point.target:
        value["u"] = point.target
    if point.date is not None:
        value["d"] = point.date - start
    if point.line is not None:
        value["n"] = point.line
    return value


def _rounded(value: float | None) -> float | None:
    """Rounds to five digits, which a chart cannot tell from more; returns None if the value is not finite."""
    if value is None or not math.isfinite(value):
        return None
    short = float(f"{value:.5g}")
    return int(short) if short.is_integer() else short


def _add_texts(rows: Sequence[Spec], field: str, texts: Sequence[str]) -> str:
    """Adds a text to each row; returns the expression that looks it up in a list, or nothing if texts rarely repeat."""
    words = {text: at for at, text in enumerate(dict.fromkeys(texts))}
    repeated = len(words) <= len(texts) / 2
    for row, text in zip(rows, texts, strict=True):
        if value := words[text] if repeated else text:
            row[field] = value
    return f"{json.dumps(list(words))}[datum.{field} || 0]" if repeated else ""
