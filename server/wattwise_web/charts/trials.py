"""Charts by trial, or by date: what each one cost, what was saved, and what a delivery has cost two jobs."""

from __future__ import annotations

import json
import math
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate
from typing import NamedTuple

from wattwise import v1
from wattwise.presentation.states import end_reason, trial_result

from wattwise_web.amounts import cost, minute, number
from wattwise_web.charts.base import (
    GOOD,
    INK,
    MOST_ROWS,
    PAIR,
    Cell,
    Chart,
    Link,
    Spec,
    base,
    batch_encoding,
    dated,
    joules_text,
    number_axis,
    page,
    rounded,
    rule,
    thinned,
    tooltip,
    unit_axis,
    with_dates,
)

_EXPLAINED = 100
"""So many of the newest trials say in their tooltips why their batch size was chosen."""
_EDGE = 0.96
"""Where a mark is that would be above the chart, relative to its top."""
_LINE = 250
"""Points of a line."""
_HOLLOW, _FILLED, _FAILED = range(3)
_SINGLE, _SEVERAL = "Each mark is a trial", "Each mark is the median of a range of trials, its line their range"


class Figures(NamedTuple):
    """The figures of a job, and its ended trials in ranges."""

    statistics: v1.JobStatistics
    buckets: Sequence[v1.TrialBucket] = ()
    savings_points: Sequence[v1.SavingsPoint] = ()


def cost_by_trial(
    job: v1.Job,
    details: v1.JobDetails,
    figures: Figures,
    bound: float | None = None,
    *,
    name: str = "cost",
    title: str = "Cost by trial",
    sizes: Iterable[int] = (),
    top: float | None = None,
) -> Chart:
    """The cost of every trial, or of ranges of trials.

    Args:
        job: the job.
        details: what it knows, with the changes that it has detected.
        figures: its figures.
        bound: the cost at which its newest trial is stopped, if it is.
        name: of the chart's element.
        title: its heading.
        sizes: the batch sizes that have colors; by default those of the job.
        top: where the vertical axis ends, so that two charts can be compared.
    """
    buckets = [bucket for bucket in figures.buckets if math.isfinite(bucket.median_cost)]
    if not buckets:
        return Chart(name, title)
    single = all(bucket.first_trial == bucket.last_trial for bucket in buckets)
    words: dict[str, int] = {}
    explained = {bucket.newest_trial for bucket in buckets[-_EXPLAINED:]}
    values = [_mark(bucket, words, single=single, explained=bucket.newest_trial in explained) for bucket in buckets]
    lines = _lines(job, figures.statistics, bound)
    highest = highest_cost(figures)
    x = number_axis("x", "trial", [value["x"] for value in values])
    y = unit_axis("y", "cost", [highest, *(line.cost for line in lines if line.cost <= 2 * highest)], high=top)
    kinds = {(value["k"], "o" in value) for value in values}
    spec = base(
        values,
        [
            *_line_layers(lines, y),
            *_change_layers(details.changes, _dates(buckets)),
            *_mark_layers(buckets, x, y, sizes=sizes or job.spec.batch_sizes, single=single),
        ],
        height=260,
        computed=[
            dated(values),
            *_computed(job.spec.job_id, list(words), y["scale"]["domain"][1], single=single),
        ],
    )
    columns = ("trial", "batch size", "cost", *(() if single else ("range",)), "result", "epochs", "ended")
    newest = buckets[: -MOST_ROWS - 1 : -1]
    return Chart(
        name,
        title,
        _caption(details, kinds, single=single),
        (*columns, *(("why this batch size",) if single else ())),
        [_row(job.spec.job_id, bucket, single=single) for bucket in newest],
        with_dates(spec, values),
        wide=True,
        struck=frozenset(place for place, bucket in enumerate(newest) if bucket.excluded),
        more_rows=max(0, len(buckets) - MOST_ROWS),
    )


def highest_cost(figures: Figures) -> float:
    """The highest cost that a chart shows: excluded trials may be out of it."""
    counted = [bucket for bucket in figures.buckets if not bucket.excluded] or figures.buckets
    costs = [value for bucket in counted for value in (bucket.median_cost, bucket.most_cost) if math.isfinite(value)]
    return max(costs, default=0.0)


def _mark(bucket: v1.TrialBucket, words: dict[str, int], *, single: bool, explained: bool) -> Spec:
    """A mark, in few letters: where it is, its batch size and kind, when and how it ended, and whether it counts."""
    failed = bucket.num_trials > 0 and bucket.num_undecided == bucket.num_trials
    value: Spec = {
        "x": bucket.first_trial if single else (bucket.first_trial + bucket.last_trial) / 2,
        "y": rounded(bucket.median_cost),
        "b": bucket.batch_size,
        "k": _FAILED if failed else _FILLED if bucket.num_deliveries else _HOLLOW,
        "e": rounded(bucket.mean_epochs),
    }
    if result := words.setdefault(_result(bucket, single=single), len(words)):
        value["r"] = result
    if bucket.HasField("last_end_time"):
        value["d"] = bucket.last_end_time.seconds
    if bucket.excluded:
        value["o"] = 1
    if not single:
        ends = {"l": rounded(bucket.least_cost), "h": rounded(bucket.most_cost)}
        value |= ends | {"f": bucket.first_trial, "t": bucket.last_trial}
    elif explained and bucket.reason:
        value["w"] = bucket.reason
    return value


def _result(bucket: v1.TrialBucket, *, single: bool) -> str:
    if single:
        status = v1.TRIAL_STATUS_FAILED if bucket.num_undecided else v1.TRIAL_STATUS_DECIDED
        word = trial_result(end_reason(bucket.end_reason), reached=bucket.num_deliveries > 0, status=status)
    else:
        word = f"{bucket.num_deliveries} of {bucket.num_trials} delivered"
    return f"{word}, excluded" if bucket.excluded else word


def _computed(job_id: str, words: list[str], top: float, *, single: bool) -> list[Spec]:
    """What the browser computes: a thousand trials stay small."""
    place = page("trial", job=job_id, number="") if single else page("job/trials", id=job_id, batch="")
    where = "datum.x" if single else "datum.b + '&from=' + datum.t"
    return [
        {"calculate": "datum.b + ''", "as": "batch"},
        {"calculate": "datum.x + ''" if single else "datum.f + '–' + datum.t", "as": "label"},
        {"calculate": joules_text("datum.y"), "as": "text"},
        {"calculate": f"{json.dumps(words)}[datum.r || 0]", "as": "result"},
        {"calculate": "format(datum.e, ',~r')", "as": "epochs"},
        {"calculate": "datum.w || ''", "as": "why"},
        {"calculate": f"{json.dumps(place)} + {where}", "as": "href"},
        # An excluded one may be far above all others.
        {"calculate": f"min(datum.y, {_EDGE * top!r})", "as": "shown"},
        {"calculate": "datum.date ? utcFormat(datum.date, '%Y-%m-%d %H:%M') + ' UTC' : ''", "as": "ended"},
    ]


def _mark_layers(
    buckets: Sequence[v1.TrialBucket], x: Spec, y: Spec, *, sizes: Iterable[int], single: bool
) -> list[Spec]:
    batch = batch_encoding(sizes, {bucket.batch_size for bucket in buckets if not bucket.excluded})
    tips = tooltip(
        ("label", "trial" if single else "trials"),
        ("batch", "batch size"),
        ("text", "cost" if single else "median cost"),
        ("result", "result"),
        ("ended", "ended" if single else "last one ended"),
        ("epochs", "epochs" if single else "mean epochs"),
        ("why", "why this batch size"),
    )
    linked: Spec = {"x": x, "y": {**y, "field": "shown"}, "tooltip": tips, "href": {"field": "href"}}
    mark: Spec = {"type": "point", "size": 56, "strokeWidth": 1.6, "aria": False, "cursor": "pointer"}

    def points(condition: str, encoding: Spec, **fields: object) -> Spec:
        return {
            "mark": {**mark, **fields},
            "transform": [{"filter": condition}],
            "encoding": {**linked, **encoding},
        }

    layers = [
        points(f"datum.k == {_FILLED} && !datum.o", batch, filled=True, opacity=1),
        points(f"datum.k != {_FILLED} && !datum.o", batch, filled=False),
        {
            "mark": {"type": "text", "text": "✕", "fontSize": 13, "aria": False, "cursor": "pointer"},
            "transform": [{"filter": f"datum.k == {_FAILED} && !datum.o"}],
            "encoding": {**linked, "color": batch["color"]},
        },
        # Struck through, and grey: the symbol stays that of the batch size.
        points("datum.o", {"shape": batch["shape"]}, filled=False, color=INK),
        points("datum.o", {}, shape="stroke", size=230, color=INK),
    ]
    if not single:
        layers.insert(
            0,
            {
                "mark": {"type": "rule", "strokeWidth": 1.5, "opacity": 0.45, "aria": False},
                "transform": [{"filter": "!datum.o"}],
                "encoding": {"x": x, "y": {**y, "field": "l"}, "y2": {"field": "h"}, "color": batch["color"]},
            },
        )
    return layers


class _Line(NamedTuple):
    """A horizontal line, with its text in the legend."""

    text: str
    cost: float
    dash: Sequence[int]


def _lines(job: v1.Job, statistics: v1.JobStatistics, bound: float | None) -> list[_Line]:
    """What a delivery costs with the default on average, and where the newest trial is stopped."""
    lines, of_cost = [], statistics.savings.cost
    if of_cost.HasField("default_mean") and math.isfinite(of_cost.default_mean):
        text = f"default {job.spec.default_batch_size}, mean of its deliveries: {cost(of_cost.default_mean)}"
        lines.append(_Line(text, of_cost.default_mean, (1, 0)))
    if bound is not None and math.isfinite(bound):
        lines.append(_Line(f"bound of the newest trial: {cost(bound)}", bound, (4, 4)))
    return lines


def _line_layers(lines: Sequence[_Line], y: Spec) -> list[Spec]:
    if not lines:
        return []
    dash = {
        "field": "line",
        "type": "nominal",
        "scale": {"domain": [line.text for line in lines], "range": [line.dash for line in lines]},
        "legend": {"title": None, "symbolType": "stroke", "symbolStrokeColor": INK, "columns": 1},
    }
    encoding = {"y": y, "strokeDash": dash, "tooltip": tooltip(("line", "line"))}
    values: list[Spec] = [{"line": line.text, "y": rounded(line.cost)} for line in lines]
    return [rule(values, encoding, strokeWidth=1.5, clip=True)]


def _change_layers(changes: Sequence[v1.DetectedChange], dates: Callable[[int], int | None]) -> list[Spec]:
    """A vertical line before the first trial since each change; no layer without changes."""
    values: list[Spec] = []
    for change in changes:
        before = dates(change.since_trial - 1)
        at: Spec = {"x": change.since_trial - 0.5, "change": change.message}
        values.append(at | ({"date": before * 1000} if before else {}))
    if not values:
        return []
    encoding = {"x": {"field": "x", "type": "quantitative"}, "tooltip": tooltip(("change", "changed"))}
    return [rule(values, encoding, strokeDash=[2, 3], strokeWidth=1.5)]


def _dates(buckets: Sequence[v1.TrialBucket]) -> Callable[[int], int | None]:
    """When the trials up to a number had ended, in seconds; None if that is not known."""
    ended_ones = [bucket for bucket in buckets if bucket.HasField("last_end_time")]
    trials = [bucket.last_trial for bucket in ended_ones]
    dates = list(accumulate((bucket.last_end_time.seconds for bucket in ended_ones), max))

    def date(trial: int) -> int | None:
        place = bisect_right(trials, trial)
        return dates[place - 1] if place else None

    return date


def _caption(details: v1.JobDetails, kinds: set[tuple[int, bool]], *, single: bool) -> str:
    """What the marks mean."""
    legend = {
        (_FILLED, False): "filled: it delivered a model",
        (_HOLLOW, False): "hollow: it missed the target",
        (_FAILED, False): "✕: it failed",
    }
    parts = [text for kind, text in legend.items() if kind in kinds]
    if any(excluded for _, excluded in kinds):
        parts.append("grey and struck through: excluded, so it does not count")
    marked = "".join(f" A vertical line: {change.message}." for change in details.changes)
    return f"{_SINGLE if single else _SEVERAL}; {'; '.join(parts)}.{marked}"


def _row(job_id: str, bucket: v1.TrialBucket, *, single: bool) -> tuple[Cell, ...]:
    size, median = str(bucket.batch_size), cost(bucket.median_cost)
    when = minute(bucket.last_end_time) if bucket.HasField("last_end_time") else "–"
    mean = bucket.mean_epochs
    tail = (_result(bucket, single=single), f"{mean:,.0f}" if mean.is_integer() else number(mean), when)
    if single:
        link = Link(str(bucket.first_trial), page("trial", job=job_id, number=bucket.first_trial))
        return link, size, median, *tail, bucket.reason or "–"
    ends = f"{cost(bucket.least_cost)} to {cost(bucket.most_cost)}"
    href = page("job/trials", id=job_id, batch=size, **{"from": bucket.last_trial})
    return Link(f"{bucket.first_trial}–{bucket.last_trial}", href), size, median, ends, *tail


def saved_so_far(job: v1.Job, figures: Figures) -> Chart:
    """The saving up to each trial, and where it broke even."""
    name, title = "savings", "Saved so far"
    statistics = figures.statistics
    points = [point for point in figures.savings_points if point.HasField("saved_cost")]
    if not points:
        return Chart(name, title)
    dates = _dates(figures.buckets)
    values = [_saved(point, dates(point.trial_number)) for point in thinned(points, _LINE)]
    estimates = [value["s"] for value in values if value["s"] is not None]
    bounds = [value["l"] for value in values if value["l"] is not None]
    # A lower bound may be far below: it would leave the estimate no room.
    span = max([0.0, *estimates]) - min([0.0, *estimates])
    floor = min([0.0, *estimates]) - 2 * span
    is_clipped = span > 0 and min(bounds, default=0.0) < floor
    x = number_axis("x", "trial", [value["x"] for value in values])
    y = unit_axis("s", "saved cost", [*estimates, *bounds], low=floor if is_clipped else None)
    broke_even = statistics.break_even_trial if statistics.HasField("break_even_trial") else None
    spec = base(
        values,
        _saved_layers(x, y) + _break_even_layers(broke_even, dates),
        computed=[
            {"calculate": joules_text("datum.s"), "as": "text"},
            {"calculate": f"datum.l === null ? '–' : {joules_text('datum.l')}", "as": "least_text"},
            {"calculate": f"{json.dumps(page('trial', job=job.spec.job_id, number=''))} + datum.x", "as": "href"},
            dated(values),
        ],
    )
    caption = (
        "Solid: saved at least; dashed: the estimate; both are cautious, by what is known of the default today. Below "
        "zero: not yet. A loss is computed by what a model takes with the default, and is smaller than these lines say."
    )
    if is_clipped:
        caption += " The solid line goes on below the chart; the table has all its values."
    if since := statistics.savings.compared_from_trial:
        caption += f" Counted from trial {since} on, since when the job behaves in another way."
    if broke_even is not None:
        caption += f" The vertical line is the break-even, at trial {broke_even}."
    return Chart(
        name,
        title,
        caption,
        ("up to trial", "deliveries", "estimate", "at least"),
        [_saved_row(point) for point in points[: -MOST_ROWS - 1 : -1]],
        with_dates(spec, values),
        more_rows=max(0, len(points) - MOST_ROWS),
    )


def _saved(point: v1.SavingsPoint, date: int | None) -> Spec:
    least = rounded(point.saved_cost_at_least) if point.HasField("saved_cost_at_least") else None
    value: Spec = {"x": point.trial_number, "s": rounded(point.saved_cost), "l": least}
    return value | ({} if date is None else {"d": date})


def _saved_row(point: v1.SavingsPoint) -> tuple[str, ...]:
    return (
        str(point.trial_number),
        f"{point.num_deliveries:,}",
        cost(point.saved_cost),
        cost(point.saved_cost_at_least) if point.HasField("saved_cost_at_least") else "–",
    )


def _saved_layers(x: Spec, y: Spec) -> list[Spec]:
    least = {**y, "field": "l"}

    def line(field: Spec, **fields: object) -> Spec:
        return {
            "mark": {"type": "line", "color": GOOD, "clip": True, "aria": False, **fields},
            "encoding": {"x": x, "y": field},
        }

    return [
        rule([{"zero": 0}], {"y": {"field": "zero", "type": "quantitative"}}),
        {
            "mark": {"type": "area", "opacity": 0.15, "color": GOOD, "clip": True, "aria": False},
            "encoding": {"x": x, "y": least, "y2": {"field": "s"}},
        },
        line(y, strokeDash=[5, 3], strokeWidth=1.5),
        line(least, strokeWidth=2.2),
        {
            "mark": {"type": "point", "opacity": 0, "size": 120, "aria": False, "cursor": "pointer"},
            "encoding": {
                "x": x,
                "y": y,
                "tooltip": tooltip(("x", "trial"), ("text", "estimate"), ("least_text", "at least")),
                "href": {"field": "href"},
            },
        },
    ]


def _break_even_layers(trial: int | None, dates: Callable[[int], int | None]) -> list[Spec]:
    if trial is None:
        return []
    date = dates(trial)
    value: Spec = {"x": trial} | ({"date": date * 1000} if date else {})
    return [rule([value], {"x": {"field": "x", "type": "quantitative"}}, strokeDash=[2, 3])]


class _Delivered(NamedTuple):
    """What a delivery has cost up to a trial, failed and exploring trials included."""

    job_id: str
    trial: int
    deliveries: int
    each: float
    date: int | None


def cost_per_delivery(found: Sequence[tuple[v1.Job, Figures]]) -> Chart:
    """What a delivery has cost each of two jobs up to each trial."""
    name, title = "per-delivery", "Cost per delivery"
    points = [
        _Delivered(job.spec.job_id, point.trial_number, point.num_deliveries, each, dates(point.trial_number))
        for job, figures in found
        for dates in [_dates(figures.buckets)]
        for point in thinned(figures.savings_points, _LINE)
        if point.num_deliveries and math.isfinite(each := point.spent_cost / point.num_deliveries)
    ]
    if not points:
        return Chart(name, title)
    names = [job.spec.job_id for job, _ in found]
    values: list[Spec] = [
        {"j": names.index(point.job_id), "x": point.trial, "y": rounded(point.each), "n": point.deliveries}
        | ({} if point.date is None else {"d": point.date})
        for point in points
    ]
    of_job: Spec = {"field": "job", "type": "nominal", "legend": {"title": "job", "columns": 1}}
    color: Spec = {**of_job, "scale": {"domain": names, "range": [color for color, _ in PAIR]}}
    shape: Spec = {**of_job, "scale": {"domain": names, "range": [shape for _, shape in PAIR]}}
    x, y = (
        number_axis("x", "trial", [point.trial for point in points]),
        unit_axis("y", "cost per delivery", [point.each for point in points]),
    )
    tips = tooltip(("job", "job"), ("x", "up to trial"), ("n", "deliveries"), ("text", "cost per delivery"))
    layers: list[Spec] = [
        {"mark": {"type": "line", "strokeWidth": 1.8, "aria": False}, "encoding": {"x": x, "y": y, "color": color}},
        {
            "mark": {"type": "point", "filled": True, "size": 26, "aria": False, "cursor": "pointer"},
            "encoding": {"x": x, "y": y, "color": color, "shape": shape, "tooltip": tips, "href": {"field": "href"}},
        },
    ]
    links = [page("trial", job=job_id, number="") for job_id in names]
    computed = [
        {"calculate": f"{json.dumps(names)}[datum.j]", "as": "job"},
        {"calculate": joules_text("datum.y"), "as": "text"},
        {"calculate": f"{json.dumps(links)}[datum.j] + datum.x", "as": "href"},
        dated(values),
    ]
    rows = [
        (
            Link(point.job_id, page("job", id=point.job_id)),
            str(point.trial),
            f"{point.deliveries:,}",
            cost(point.each),
        )
        for point in sorted(points, key=lambda point: -point.trial)[:MOST_ROWS]
    ]
    return Chart(
        name,
        title,
        "All cost so far, failed and exploring trials included, divided by the deliveries so far.",
        ("job", "up to trial", "deliveries", "cost per delivery"),
        rows,
        with_dates(base(values, layers, height=260, computed=computed), values),
        wide=True,
        more_rows=max(0, len(points) - MOST_ROWS),
    )
