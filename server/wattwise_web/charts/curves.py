"""The metric by epoch of some trials, one over the other."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from wattwise import v1
from wattwise.presentation.quantities import energy_of

from wattwise_web.amounts import cost, metric
from wattwise_web.charts.base import (
    MOST_ROWS,
    Chart,
    Link,
    Spec,
    base,
    batch_encoding,
    number_axis,
    page,
    rounded,
    rule,
    thinned,
    tooltip,
    unit_axis,
)

POINTS = 800
"""The most points of all curves together."""
_MARKED = 120
"""A curve with more points has symbols only at its first and its last one."""
_CLOSE = 0.8
"""Metrics whose lowest value is more than this part of the highest one have an axis that does not begin at zero."""


class Curve(NamedTuple):
    """The epochs of one trial.

    Attributes:
        trial_number: the trial.
        batch_size: its batch size.
        running: whether more epochs follow.
        measurements: its epochs.
    """

    trial_number: int
    batch_size: int
    running: bool
    measurements: Sequence[v1.Measurement]


def curves(spec: v1.JobSpec, found: Sequence[Curve], *, of_job: bool = True) -> Chart:
    """The metric by epoch, against the target.

    Args:
        spec: the job.
        found: the trials; running ones are drawn thicker.
        of_job: whether they are trials of several batch sizes rather than a single one.
    """
    name, title = "curves", "Metric by epoch"
    most = max(2, POINTS // max(1, len(found)))
    shown = [(curve, thinned(curve.measurements, most)) for curve in found]
    rows = [
        (
            Link(str(curve.trial_number), page("trial", job=spec.job_id, number=curve.trial_number)),
            str(curve.batch_size),
            str(each.epoch),
            metric(each.metric),
            "–" if (energy := energy_of(each)) is None else cost(energy),
        )
        for curve, measurements in shown
        for each in reversed(measurements)
    ]
    values: list[Spec] = [
        {"n": curve.trial_number, "b": curve.batch_size, "x": each.epoch}
        | {"y": rounded(each.metric), "t": metric(each.metric)}
        | ({"g": 1} if curve.running else {})
        | ({} if len(measurements) <= _MARKED or place in (0, len(measurements) - 1) else {"s": 1})
        for curve, measurements in shown
        for place, each in enumerate(measurements)
        if math.isfinite(each.metric)
    ]
    columns = ("trial", "batch size", "epoch", "metric", "energy so far")
    table = Chart(name, title, "", columns, rows[:MOST_ROWS], more_rows=max(0, len(rows) - MOST_ROWS))
    if not values:
        return replace(table, empty="No reported metric is a finite number.") if rows else table
    sizes = {curve.batch_size for curve in found}
    x = number_axis("x", "epoch", [value["x"] for value in values])
    metrics = [value["y"] for value in values]
    layers = _layers(spec, x, _metric_axis([*metrics, spec.target.value]), sizes, of_job=of_job)
    computed = [
        {"calculate": "datum.b + ''", "as": "batch"},
        {"calculate": "datum.n + (datum.g ? ', running' : '')", "as": "trial"},
        {"calculate": f"{json.dumps(page('trial', job=spec.job_id, number=''))} + datum.n", "as": "href"},
    ]
    if of_job:
        which = "of the newest ended trial of each batch size, and thicker of running trials"
        caption = f"The metric by epoch, {which}; the dashed line is the target, {spec.target.value:g}."
    else:
        caption = f"The dashed line is the target, {spec.target.value:g}."
    return replace(table, caption=caption, spec=base(values, layers, computed=computed))


def _metric_axis(values: Sequence[float]) -> Spec:
    """An axis from zero, unless all values are far from zero and close to each other."""
    low, high = min(values), max(values)
    if low * high <= 0 or min(abs(low), abs(high)) <= _CLOSE * max(abs(low), abs(high)):
        return unit_axis("y", "metric", values, units=((1.0, ""),))
    room = 0.1 * (high - low or abs(high))
    return {
        "field": "y",
        "type": "quantitative",
        "axis": {"title": "metric", "format": "~g"},
        "scale": {"domain": [low - room, high + room], "nice": False, "zero": False},
    }


def _layers(spec: v1.JobSpec, x: Spec, y: Spec, sizes: set[int], *, of_job: bool) -> list[Spec]:
    batch = batch_encoding(spec.batch_sizes, sizes if of_job else ())
    tips = tooltip(("trial", "trial"), ("batch", "batch size"), ("x", "epoch"), ("t", "metric"))
    detail: Spec = {"field": "n", "type": "nominal"}

    def line(condition: str, **fields: object) -> Spec:
        return {
            "mark": {"type": "line", "aria": False, **fields},
            "transform": [{"filter": condition}],
            "encoding": {"x": x, "y": y, "color": batch["color"], "detail": detail},
        }

    def points(condition: str, **fields: object) -> Spec:
        return {
            "mark": {"type": "point", "filled": True, "aria": False, "cursor": "pointer", **fields},
            "transform": [{"filter": condition}],
            "encoding": {"x": x, "y": y, **batch, "tooltip": tips, "href": {"field": "href"}},
        }

    target = rule(
        [{"target": spec.target.value}], {"y": {"field": "target", "type": "quantitative"}}, strokeDash=[4, 4]
    )
    return [
        line("!datum.g", strokeWidth=1.4, opacity=0.8),
        line("datum.g", strokeWidth=3),
        points("!datum.s", size=30, opacity=1),
        points("datum.s", size=30, opacity=0),
        target,
    ]
