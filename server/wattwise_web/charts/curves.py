"""The metric by epoch of some trials, one over the other."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from wattwise import v1
from wattwise.presentation.quantities import energy, energy_of, metric
from wattwise.presentation.states import direction

from wattwise_web.amounts import UNKNOWN
from wattwise_web.charts.marks import (
    MOST_ROWS,
    Amounts,
    Chart,
    Dots,
    Drawing,
    Lines,
    Link,
    Look,
    Mark,
    Point,
    Rule,
    Source,
    Tip,
    amount_axis,
    batch_palette,
    page,
    thinned,
    whole_axis,
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

    @property
    def points(self) -> list[Point]:
        """The points of its epochs with finite metrics."""
        name, last = f"{self.trial_number}{', running' if self.running else ''}", len(self.measurements) - 1
        return [
            Point(
                each.epoch,
                each.metric,
                str(self.batch_size),
                Look.FILLED if last < _MARKED or place in (0, last) else Look.HIDDEN,
                line=self.trial_number,
                texts=(name, metric(each.metric)),
                target=str(self.trial_number),
            )
            for place, each in enumerate(self.measurements)
            if math.isfinite(each.metric)
        ]


def curves(spec: v1.JobSpec, found: Sequence[Curve], *, of_job: bool = True) -> Chart | None:
    """Returns the metric by epoch, against the target.

    Args:
        spec: the job.
        found: the trials; running ones are drawn thicker.
        of_job: whether they are trials of several batch sizes rather than a single one.
    """
    most = max(2, POINTS // max(1, len(found)))
    shown = [curve._replace(measurements=thinned(curve.measurements, most)) for curve in found]
    rows = [
        (
            Link(str(curve.trial_number), page("trial", job=spec.job_id, number=curve.trial_number)),
            str(curve.batch_size),
            str(each.epoch),
            metric(each.metric),
            UNKNOWN if (used := energy_of(each)) is None else energy(used),
        )
        for curve in shown
        for each in reversed(curve.measurements)
    ]
    if not rows:
        return None
    columns = ("trial", "batch size", "epoch", "metric", "energy so far")
    more_rows = max(0, len(rows) - MOST_ROWS)
    chart = Chart("curves", "Metric by epoch", columns, rows[:MOST_ROWS], more_rows=more_rows)
    ended = [point for curve in shown if not curve.running for point in curve.points]
    running = [point for curve in shown if curve.running for point in curve.points]
    points = [*ended, *running]
    if not points:
        return replace(chart, empty="No reported metric is a finite number.")
    tips = (Tip("trial"), Tip("batch size", Source.SERIES), Tip("epoch", Source.X), Tip("metric"))
    address = page("trial", job=spec.job_id, number="")
    marks: list[Mark] = [
        *(Lines(group, width=width) for group, width in ((ended, 1.4), (running, 3))),
        *(Dots(group, tips, address, size=30) for group in (ended, running)),
        Rule("y", spec.target.value, dash=(4, 4)),
    ]
    drawing = Drawing(
        whole_axis("epoch", points),
        _metric_axis([*(point.y for point in points if point.y is not None), spec.target.value]),
        marks,
        batch_palette(spec.batch_sizes, {curve.batch_size for curve in found} if of_job else ()),
    )
    target = f"the dashed line is the target: {direction(spec)} {spec.target.value:g}."
    which = "of the newest ended trial of each batch size, and of running trials, which have thicker lines"
    return replace(
        chart,
        drawing=drawing,
        caption=f"The metric by epoch {which}; {target}" if of_job else f"{target[0].upper()}{target[1:]}",
    )


def _metric_axis(values: Sequence[float]) -> Amounts:
    """Returns an axis from zero, unless all values are far from zero and close to each other."""
    low, high = min(values), max(values)
    if low * high <= 0 or min(abs(low), abs(high)) <= _CLOSE * max(abs(low), abs(high)):
        return amount_axis("metric", values, units=((1.0, ""),))
    room = 0.1 * (high - low or abs(high))
    return Amounts("metric", low - room, high + room)
