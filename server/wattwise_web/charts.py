"""The charts of a page as Vega-Lite specifications, each with the table of what it shows."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from wattwise import v1
from wattwise.commands.humanize import percent

from wattwise_web.amounts import cost, energy, metric, number, step_time

Spec = dict[str, Any]
_SCHEMA = "https://vega.github.io/schema/vega-lite/v5.json"
# Each has a contrast of 3:1 and more on the light and the dark background.
_STOPS = ((14, 138, 122), (43, 122, 196), (122, 100, 214), (190, 74, 152), (206, 100, 40))
_SHAPES = ("circle", "square", "triangle-up", "diamond", "triangle-down", "cross")
_GOOD, _BAD, _INK = "#0e8a7a", "#c8553d", "#7d8590"


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
        empty: what will fill it, where there is nothing to draw.
        wide: whether it has the page's width.
    """

    name: str
    title: str
    caption: str
    columns: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()
    spec: Spec | None = None
    empty: str = ""
    wide: bool = False
    more_rows: int = field(default=0)


_MOST_ROWS = 100
"""Rows of a chart's table: the newest ones of long tables."""


def _scale(sizes: Iterable[int]) -> tuple[list[str], list[str], list[str]]:
    """Names, colors and shapes of batch sizes, small to large."""
    ordered = sorted(sizes)
    last = max(1, len(ordered) - 1)
    colors = [_color(index / last) for index in range(len(ordered))]
    return list(map(str, ordered)), colors, [_SHAPES[index % len(_SHAPES)] for index in range(len(ordered))]


def _color(place: float) -> str:
    position = place * (len(_STOPS) - 1)
    low = min(int(position), len(_STOPS) - 2)
    part = position - low
    channels = (round(a + (b - a) * part) for a, b in zip(_STOPS[low], _STOPS[low + 1], strict=True))
    return "#" + "".join(f"{channel:02x}" for channel in channels)


def _base(values: list[Spec], layers: list[Spec], *, height: int = 220) -> Spec:
    return {
        "$schema": _SCHEMA,
        "width": "container",
        "height": height,
        "data": {"name": "rows", "values": values},
        "layer": layers,
    }


def _batch(job: v1.Job, shown: Iterable[int] = (), *, shape: bool = True) -> Spec:
    """A batch size has its color and its shape in all charts of a job. The legend has those that are shown."""
    names, colors, shapes = _scale(job.spec.batch_sizes)
    known = [str(size) for size in sorted(shown)]
    legend = {"title": "batch size", "values": known} if known else None
    both: Spec = {"field": "batch", "type": "nominal", "legend": legend}
    encoded: Spec = {"color": {**both, "scale": {"domain": names, "range": colors}}}
    if shape:
        encoded["shape"] = {**both, "scale": {"domain": names, "range": shapes}}
    return encoded


def _x(name: str, title: str, values: Iterable[float] = ()) -> Spec:
    """A horizontal axis; with values, one of whole numbers that covers them."""
    axis: Spec = {"title": title, "grid": False}
    places = list(values)
    if places:
        axis |= {"values": _whole_ticks(min(places), max(places)), "format": ",d"}
    return {"field": name, "type": "quantitative", "axis": axis, "scale": {"zero": False, "nice": False, "padding": 8}}


def _whole_ticks(low: float, high: float) -> list[int]:
    """At most 12 whole numbers, at round steps."""
    steps = (number * 10**power for power in range(9) for number in (1, 2, 5))
    step = next(step for step in steps if (high - low) / step <= 11)
    ticks = list(range(math.ceil(low / step) * step, math.floor(high) + 1, step))
    first = math.ceil(low)
    return ticks if ticks and ticks[0] - first <= step / 3 else [first, *ticks]


def _y(name: str, title: str, *, zero: bool = False) -> Spec:
    return {
        "field": name,
        "type": "quantitative",
        "axis": {"title": title, "format": "~s"},
        "scale": {"zero": zero},
    }


def _tooltip(*fields: tuple[str, str]) -> list[Spec]:
    return [{"field": name, "title": title, "type": "nominal"} for name, title in fields]


def _finite(value: float) -> bool:
    return math.isfinite(value)


def cost_by_trial(job: v1.Job, statistics: v1.JobStatistics, bound: float | None) -> Chart:
    """Chart 1: the cost of every trial, or of ranges of trials.

    Args:
        job: the job.
        statistics: its figures, with buckets.
        bound: the cost at which its newest trial is stopped, if it is.
    """
    title, name = "Cost by trial", "cost"
    buckets = [bucket for bucket in statistics.buckets if _finite(bucket.median_cost)]
    if not buckets:
        return Chart(name, title, "", empty="Every trial appears here once it has ended.", wide=True)
    single = all(bucket.first_trial == bucket.last_trial for bucket in buckets)
    values = [_cost_value(bucket, single=single) for bucket in buckets]
    sizes = {bucket.batch_size for bucket in buckets}
    tips = _tooltip(("label", "trial"), ("batch", "batch size"), ("text", "cost"), ("result", "result"))
    # Computed in the browser: a thousand trials stay small.
    computed: list[Spec] = [
        {"calculate": "datum.b + ''", "as": "batch"},
        {"calculate": "datum.t || datum.x + ''", "as": "label"},
        {"calculate": "format(datum.y, '.3s') + 'J'", "as": "text"},
        {"calculate": f"datum.r || {_RESULT_EXPRESSION}", "as": "result"},
    ]
    x, y = _x("x", "trial", [value["x"] for value in values]), _y("y", "cost (J)")
    batch, color = _batch(job, sizes), _batch(job, sizes, shape=False)
    mark: Spec = {"type": "point", "size": 46, "strokeWidth": 1.6, "aria": False}
    solid: Spec = {
        "mark": {**mark, "filled": True, "opacity": 1},
        "transform": [{"filter": "datum.k == 1"}],
        "encoding": {"x": x, "y": y, **batch, "tooltip": tips},
    }
    hollow: Spec = {
        "mark": {**mark, "filled": False},
        "transform": [{"filter": "datum.k == 0"}],
        "encoding": {"x": x, "y": y, **batch, "tooltip": tips},
    }
    failed: Spec = {
        "mark": {"type": "text", "text": "✕", "fontSize": 13, "aria": False},
        "transform": [{"filter": "datum.k == 2"}],
        "encoding": {"x": x, "y": y, **color, "tooltip": tips},
    }
    layers = [solid, hollow, failed]
    if not single:
        layers.insert(
            0,
            {
                "mark": {"type": "rule", "strokeWidth": 1.5, "opacity": 0.45, "aria": False},
                "encoding": {"x": x, "y": _y("l", "cost (J)"), "y2": {"field": "h"}, **color},
            },
        )
    bounded = bound is not None and _finite(bound)
    if bounded:
        layers.append(
            {
                "data": {"values": [{"bound": bound}]},
                "mark": {"type": "rule", "strokeDash": [4, 4], "color": _INK, "aria": False},
                "encoding": {"y": {"field": "bound", "type": "quantitative"}},
            }
        )
    layers += _change_layers(job.changes)
    what = "Each mark is a trial" if single else "Each mark is the median of a range of trials, its line their range"
    dashes = "; the dashed line is the bound at which the newest trial is stopped" if bounded else ""
    legend = "Filled: it delivered a model; hollow: it missed the target or explored; ✕: failed"
    marked = "".join(f" A vertical line: {change.message}." for change in job.changes)
    caption = f"{what}. {legend}{dashes}.{marked}"
    columns = ("trial", "batch size", "cost", *(() if single else ("range",)), "result")
    rows = [
        _cost_row(bucket, value["k"], single=single) for bucket, value in zip(buckets[::-1], values[::-1], strict=True)
    ]
    spec = _base(values, layers, height=260)
    spec["transform"] = computed
    return Chart(name, title, caption, columns, rows[:_MOST_ROWS], spec, "", True, max(0, len(rows) - _MOST_ROWS))


def _change_layers(changes: Sequence[v1.DetectedChange]) -> list[Spec]:
    """A vertical line before the first trial since each change; no layer without changes."""
    values = [{"at": change.since_trial - 0.5, "change": change.message} for change in changes]
    if not values:
        return []
    return [
        {
            "data": {"values": values},
            "mark": {"type": "rule", "strokeDash": [2, 3], "strokeWidth": 1.5, "color": _INK, "aria": False},
            "encoding": {
                "x": {"field": "at", "type": "quantitative"},
                "tooltip": _tooltip(("change", "changed")),
            },
        }
    ]


_RESULTS = ("no delivery", "delivered", "failed")
_RESULT_EXPRESSION = "['no delivery', 'delivered', 'failed'][datum.k]"


def _cost_value(bucket: v1.TrialBucket, *, single: bool) -> Spec:
    """A mark: where it is, its batch size, and its kind: hollow, solid or a cross."""
    failed = bucket.num_trials > 0 and bucket.num_failed == bucket.num_trials
    explored = bucket.num_explorations == bucket.num_trials
    value: Spec = {
        "x": (bucket.first_trial + bucket.last_trial) / 2,
        "y": _rounded(bucket.median_cost),
        "b": bucket.batch_size,
        "k": 2 if failed else 1 if bucket.num_deliveries and not explored else 0,
    }
    if single:
        # A hollow mark may have delivered, too.
        result = {"r": _RESULTS[1]} if explored and bucket.num_deliveries else {}
        return value | {"x": bucket.first_trial} | result
    label = f"{bucket.first_trial}–{bucket.last_trial}"
    return value | {
        "l": _rounded(bucket.least_cost),
        "h": _rounded(bucket.most_cost),
        "t": label,
        "r": f"{bucket.num_deliveries} of {bucket.num_trials} delivered",
    }


def _cost_row(bucket: v1.TrialBucket, kind: int, *, single: bool) -> tuple[str, ...]:
    size, median = str(bucket.batch_size), cost(bucket.median_cost)
    if single:
        result = _RESULTS[1] if bucket.num_deliveries else _RESULTS[kind]
        return str(bucket.first_trial), size, median, result
    ends = f"{cost(bucket.least_cost)} to {cost(bucket.most_cost)}"
    result = f"{bucket.num_deliveries} of {bucket.num_trials} delivered"
    return f"{bucket.first_trial}–{bucket.last_trial}", size, median, ends, result


def _rounded(value: float) -> float | None:
    """With five digits, which a chart cannot tell from more; None if it is not finite."""
    return float(f"{value:.5g}") if math.isfinite(value) else None


def beliefs(job: v1.Job, preview: Sequence[v1.PreviewedChoice], money: Mapping[int, str] | None = None) -> Chart:
    """Chart 2: what a model is expected to cost with each batch size, and which is next.

    Args:
        job: the job.
        preview: what its next launch may get.
        money: the mean money of a delivery, by batch size; None without prices, for no such column.
    """
    name, title = "arms", "Batch sizes"
    chances = {choice.batch_size: choice.probability for choice in preview}
    arms = {arm.batch_size: arm for arm in job.arms}
    values: list[Spec] = []
    rows: list[tuple[str, ...]] = []
    for state in job.batch_size_states:
        mean, deviation = _belief(state, arms.get(state.batch_size))
        chance = chances.get(state.batch_size, 0.0)
        rows.append(
            (
                str(state.batch_size),
                _STATUS.get(state.status, "unknown"),
                "–" if mean is None else cost(mean),
                "–" if deviation is None else f"± {cost(1.96 * deviation)}",
                *(() if money is None else (money.get(state.batch_size, "–"),)),
                percent(chance),
                f"{state.num_converged} / {state.num_missed} / {state.num_failed}",
                state.reason,
            )
        )
        if mean is None:
            continue
        spread = 1.96 * (deviation or 0.0)
        values.append(
            {
                "batch": str(state.batch_size),
                "y": _rounded(mean),
                "low": _rounded(max(0.0, mean - spread)),
                "high": _rounded(mean + spread),
                "chance": _rounded(chance),
                "text": f"{cost(mean)} ± {cost(spread)}",
                "next": percent(chance),
                "open": state.status not in (v1.BATCH_SIZE_STATUS_ALLOWED, v1.BATCH_SIZE_STATUS_PINNED),
            }
        )
    columns = (
        "batch size",
        "state",
        "expected cost",
        "95%",
        *(() if money is None else ("mean money of a delivery",)),
        "chance of being next",
        "reached / missed / failed",
        "why",
    )
    if not values:
        return Chart(name, title, "", columns, rows, None, "The first finished trial begins to fill this chart.")
    order = list(map(str, sorted(job.spec.batch_sizes)))
    axis_x: Spec = {
        "field": "batch",
        "type": "ordinal",
        "sort": order,
        "axis": {"title": "batch size", "labelAngle": 0},
    }
    color = _batch(job, shape=False)
    tips = _tooltip(("batch", "batch size"), ("text", "expected cost"), ("next", "chance of being next"))

    def points(*, filled: bool) -> Spec:
        return {
            "mark": {"type": "point", "size": 90, "strokeWidth": 2, "opacity": 1, "aria": False, "filled": filled},
            "transform": [{"filter": "!datum.open" if filled else "datum.open"}],
            "encoding": {"x": axis_x, "y": _y("y", "expected cost (J)"), **color, "tooltip": tips},
        }

    layers: list[Spec] = [
        {
            "mark": {"type": "rule", "strokeWidth": 2, "aria": False},
            "encoding": {"x": axis_x, "y": _y("low", "expected cost (J)"), "y2": {"field": "high"}, **color},
        },
        points(filled=True),
        points(filled=False),
        {
            "mark": {"type": "text", "dy": -8, "baseline": "bottom", "fontSize": 11, "aria": False},
            "transform": [{"filter": "datum.chance > 0"}],
            "encoding": {
                "x": axis_x,
                "y": _y("high", "expected cost (J)"),
                "text": {"field": "next"},
                "color": {"value": _INK},
            },
        },
    ]
    caption = (
        "What a model is expected to cost with each batch size, failures included, with its 95% range. The percentage "
        "above is the chance of being next; hollow ones may not be chosen now."
    )
    return Chart(name, title, caption, columns, rows, _base(values, layers))


_STATUS = {
    v1.BATCH_SIZE_STATUS_ALLOWED: "allowed",
    v1.BATCH_SIZE_STATUS_PRUNED: "pruned",
    v1.BATCH_SIZE_STATUS_OUT_OF_MEMORY: "out of memory",
    v1.BATCH_SIZE_STATUS_SET_ASIDE: "set aside",
    v1.BATCH_SIZE_STATUS_BANNED: "banned",
    v1.BATCH_SIZE_STATUS_PINNED: "pinned",
}


def _belief(state: v1.BatchSizeState, arm: v1.Arm | None) -> tuple[float | None, float | None]:
    """Mean and standard deviation of the expected cost; None where unknown."""
    if state.HasField("expected_cost") and _finite(state.expected_cost):
        known = state.HasField("expected_cost_deviation") and _finite(state.expected_cost_deviation)
        return state.expected_cost, state.expected_cost_deviation if known else None
    if arm is not None and arm.num_observations and arm.param_precision > 0:
        return -arm.param_mean, 1 / math.sqrt(arm.param_precision) if _finite(arm.param_precision) else 0.0
    return (state.round_cost, None) if state.HasField("round_cost") else (None, None)


def curves(
    spec: v1.JobSpec, found: Sequence[tuple[v1.Trial, Sequence[v1.Measurement]]], *, title: str = "Running trials"
) -> Chart:
    """Chart 3, and that of one trial: the metric by epoch, against the target."""
    values: list[Spec] = []
    rows: list[tuple[str, ...]] = []
    for trial, measurements in found:
        name = f"{trial.id.trial_number} (batch {trial.id.batch_size})"
        step = max(1, len(measurements) // 400)
        thinned = [*measurements[:-1:step], *measurements[-1:]]
        for each in thinned:
            rows.append((name, str(each.current_epoch), metric(each.metric), cost(each.energy_joules)))
            if _finite(each.metric):
                values.append({"trial": name, "x": each.current_epoch, "y": each.metric, "text": metric(each.metric)})
    columns = ("trial", "epoch", "metric", "energy so far")
    rows.reverse()
    if not values:
        what = "No epoch has been reported yet." if not rows else "No reported metric is a finite number."
        return Chart("curves", title, "", columns, rows[:_MOST_ROWS], None, what)
    names = list(dict.fromkeys(str(value["trial"]) for value in values))
    color: Spec = {
        "field": "trial",
        "type": "nominal",
        "scale": {"domain": names, "range": [_color(i / max(1, len(names) - 1)) for i in range(len(names))]},
        "legend": {"title": "trial"} if len(names) > 1 else None,
    }
    tips = _tooltip(("trial", "trial"), ("x", "epoch"), ("text", "metric"))
    x, y = (
        _x("x", "epoch", [value["x"] for value in values]),
        {**_y("y", "metric"), "axis": {"title": "metric", "format": "~g"}},
    )
    layers: list[Spec] = [
        {
            "mark": {"type": "line", "strokeWidth": 1.8, "aria": False},
            "encoding": {
                "x": x,
                "y": y,
                "color": color,
                "strokeDash": {**color, "scale": {"domain": names}, "legend": None},
            },
        },
        {
            "mark": {"type": "point", "filled": True, "size": 26, "aria": False},
            "encoding": {"x": x, "y": y, "color": color, "tooltip": tips},
        },
        {
            "data": {"values": [{"target": spec.target_metric}]},
            "mark": {"type": "rule", "strokeDash": [4, 4], "color": _INK, "aria": False},
            "encoding": {"y": {"field": "target", "type": "quantitative"}},
        },
    ]
    caption = f"The metric by epoch; the dashed line is the target, {metric(spec.target_metric)}."
    return Chart(
        "curves",
        title,
        caption,
        columns,
        rows[:_MOST_ROWS],
        _base(values, layers),
        more_rows=max(0, len(rows) - _MOST_ROWS),
    )


def epochs(job: v1.Job, statistics: v1.JobStatistics) -> Chart:
    """Chart 4: epochs to the target, and energy of an epoch, by batch size."""
    name, title = "epochs", "Epochs to the target"
    totals: dict[int, list[v1.TrialStatistics]] = {}
    for each in statistics.trials:
        if each.num_deliveries and each.mean_epochs > 0:
            totals.setdefault(each.batch_size, []).append(each)
    values: list[Spec] = []
    rows: list[tuple[str, ...]] = []
    for size, parts in sorted(totals.items()):
        count = sum(part.num_deliveries for part in parts)
        mean = sum(part.mean_epochs * part.num_deliveries for part in parts) / count
        least, most = min(part.least_epochs for part in parts), max(part.most_epochs for part in parts)
        joules = sum(part.mean_delivery.energy_joules * part.num_deliveries for part in parts) / count / mean
        per_epoch = energy(joules) if joules > 0 else "–"
        rows.append((str(size), str(count), number(mean), f"{least} to {most}", per_epoch))
        values.append(
            {"batch": str(size), "y": mean, "low": least, "high": most, "text": number(mean), "energy": per_epoch}
        )
    columns = ("batch size", "deliveries", "mean epochs", "range", "energy of an epoch")
    if not values:
        return Chart(name, title, "", columns, rows, None, "Fills once a trial has reached the target.")
    x: Spec = {
        "field": "batch",
        "type": "ordinal",
        "sort": [value["batch"] for value in values],
        "axis": {"title": "batch size", "labelAngle": 0},
    }
    color = _batch(job, shape=False)
    y = {**_y("y", "epochs", zero=True), "axis": {"title": "epochs", "format": "~g"}}
    layers: list[Spec] = [
        {
            "mark": {"type": "bar", "opacity": 0.85, "width": 34, "aria": False},
            "encoding": {
                "x": x,
                "y": y,
                **color,
                "tooltip": _tooltip(("batch", "batch size"), ("text", "mean epochs"), ("energy", "energy of an epoch")),
            },
        },
        {
            "mark": {"type": "rule", "strokeWidth": 1.5, "color": _INK, "aria": False},
            "encoding": {"x": x, "y": {**y, "field": "low"}, "y2": {"field": "high"}},
        },
        {
            "mark": {"type": "text", "baseline": "bottom", "dy": -4, "fontSize": 11, "color": _INK, "aria": False},
            "encoding": {"x": x, "y": {**y, "field": "high"}, "text": {"field": "energy"}},
        },
    ]
    caption = "Mean epochs of deliveries with their range; above each, the mean energy of an epoch."
    return Chart(name, title, caption, columns, rows, _base(values, layers))


def power(job: v1.Job, profiles: Sequence[v1.PowerProfile]) -> Chart:
    """Chart 5: what a step takes at each power limit."""
    name, title = "power", "Power limits"
    columns = ("batch size", "limit of a GPU", "time of a step", "energy of a step", "cost of a step", "chosen")
    chosen = {limit.batch_size: limit.power_limit_watts for limit in job.power_limits}
    values: list[Spec] = []
    rows: list[tuple[str, ...]] = []
    for profile in profiles:
        for limit in profile.limits:
            best = chosen.get(profile.batch_size) == limit.power_limit_watts
            joules = limit.energy_joules_per_step
            rows.append(
                (
                    str(profile.batch_size),
                    f"{limit.power_limit_watts:g} W",
                    step_time(limit.time_seconds_per_step),
                    cost(joules) if joules > 0 else "–",
                    cost(limit.cost_per_step),
                    "chosen" if best else "",
                )
            )
            values.append(
                {
                    "batch": str(profile.batch_size),
                    "x": limit.power_limit_watts,
                    "energy": joules if joules > 0 else None,
                    "time": limit.time_seconds_per_step * 1000,
                    "best": best,
                    "text": f"{limit.power_limit_watts:g} W",
                    "cost": cost(limit.cost_per_step),
                    "energy_text": cost(joules) if joules > 0 else "–",
                    "time_text": step_time(limit.time_seconds_per_step),
                }
            )
    if not values:
        what = "Fills once a trial has profiled the power limits of its GPUs; docs/power-limits.md says how."
        return Chart(name, title, "", columns, rows, None, what)
    sizes = {profile.batch_size for profile in profiles}
    tips = _tooltip(
        ("batch", "batch size"),
        ("text", "limit"),
        ("energy_text", "energy of a step"),
        ("time_text", "time of a step"),
        ("cost", "cost of a step"),
    )
    color, batch = _batch(job, sizes, shape=False), _batch(job, sizes)

    measured = any(value["energy"] is not None for value in values)
    field, label = ("energy", "energy of a step (J)") if measured else ("time", "time of a step (ms)")
    x, y = _x("x", "power limit (W)"), _y(field, label)
    layers: list[Spec] = [
        {"mark": {"type": "line", "aria": False}, "encoding": {"x": x, "y": y, **color}},
        {
            "mark": {"type": "point", "filled": True, "size": 34, "opacity": 1, "aria": False},
            "encoding": {"x": x, "y": y, **batch, "tooltip": tips},
        },
        {
            "mark": {"type": "point", "size": 190, "strokeWidth": 2, "shape": "diamond", "aria": False},
            "transform": [{"filter": "datum.best"}],
            "encoding": {"x": x, "y": y, **color, "tooltip": tips},
        },
    ]
    caption = (
        f"{'Energy' if measured else 'Time'} of a training step by power limit, of each batch size's newest profile; "
        "the diamond marks the chosen limit. The table has time and cost, too."
    )
    return Chart(name, title, caption, columns, rows, _base(values, layers))


def saved_so_far(statistics: v1.JobStatistics) -> Chart:
    """Chart 6: the saving up to each trial, and where it broke even."""
    name, title = "savings", "Saved so far"
    columns = ("up to trial", "deliveries", "estimate", "at least")
    points = [point for point in statistics.savings_points if point.HasField("saved_cost")]
    rows = [
        (
            str(point.trial_number),
            str(point.num_deliveries),
            cost(point.saved_cost),
            cost(point.saved_cost_at_least) if point.HasField("saved_cost_at_least") else "–",
        )
        for point in reversed(points)
    ]
    values: list[Spec] = [
        {
            "x": point.trial_number,
            "s": _rounded(point.saved_cost),
            "l": _rounded(point.saved_cost_at_least) if point.HasField("saved_cost_at_least") else None,
        }
        for point in points
    ]
    if not values:
        what = "Fills once the default batch size has delivered a model: without that there is nothing to compare with."
        return Chart(name, title, "", columns, rows, None, what)
    tips = _tooltip(("x", "trial"), ("text", "estimate"), ("least_text", "at least"))
    x = _x("x", "trial", [value["x"] for value in values])
    layers: list[Spec] = [
        {
            "data": {"values": [{"zero": 0}]},
            "mark": {"type": "rule", "color": _INK, "aria": False},
            "encoding": {"y": {"field": "zero", "type": "quantitative"}},
        },
        {
            "mark": {"type": "area", "opacity": 0.15, "color": _GOOD, "aria": False},
            "encoding": {"x": x, "y": _y("l", "saved cost (J)"), "y2": {"field": "s"}},
        },
        {
            "mark": {"type": "line", "color": _GOOD, "strokeDash": [5, 3], "strokeWidth": 1.5, "aria": False},
            "encoding": {"x": x, "y": _y("s", "saved cost (J)")},
        },
        {
            "mark": {"type": "line", "color": _GOOD, "strokeWidth": 2.2, "aria": False},
            "encoding": {"x": x, "y": _y("l", "saved cost (J)")},
        },
        {
            "mark": {"type": "point", "opacity": 0, "size": 120, "aria": False},
            "encoding": {"x": x, "y": _y("s", "saved cost (J)"), "tooltip": tips},
        },
    ]
    caption = "Solid: saved at least; dashed: the estimate; both by today's baseline. Below zero is a loss."
    if since := statistics.savings.compared_from_trial:
        caption += f" Counted from trial {since} on, since when the job behaves in another way."
    if statistics.savings.HasField("break_even_trial"):
        trial = statistics.savings.break_even_trial
        layers.append(
            {
                "data": {"values": [{"trial": trial}]},
                "mark": {"type": "rule", "strokeDash": [2, 3], "color": _INK, "aria": False},
                "encoding": {"x": {"field": "trial", "type": "quantitative"}},
            }
        )
        caption += f" The vertical line is the break-even, at trial {trial}."
    spec = _base(values, layers)
    spec["transform"] = [
        {"calculate": "format(datum.s, '.3s') + 'J'", "as": "text"},
        {"calculate": "datum.l === null ? '–' : format(datum.l, '.3s') + 'J'", "as": "least_text"},
    ]
    return Chart(name, title, caption, columns, rows[:_MOST_ROWS], spec, more_rows=max(0, len(rows) - _MOST_ROWS))
