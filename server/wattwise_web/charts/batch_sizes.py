"""Charts by batch size: what a model is expected to cost, epochs to the target, and power limits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from wattwise import v1
from wattwise.presentation.quantities import PLUS_MINUS, percent, step_energy
from wattwise.presentation.sentences import has_prices, mean_money
from wattwise.presentation.states import may_be_chosen, status_name

from wattwise_web.amounts import JOULES, cost, energy, number, step_time
from wattwise_web.batch_sizes import Belief, beliefs
from wattwise_web.charts.base import (
    INK,
    Cell,
    Chart,
    Link,
    Spec,
    base,
    batch_axis,
    batch_encoding,
    number_axis,
    page,
    rounded,
    tooltip,
    unit_axis,
)

_FAR = 10
"""A batch size whose expected cost is that many times the least one need not fit into the chart."""
_LONG = 2
"""An interval may be so many times as high as the highest expected cost that fits."""
_LABELS, _NARROW = 3, 12
"""So many batch sizes have their chance above them, the most likely ones; of more batch sizes only one."""
_TEXTS = 5
"""The most batch sizes with the energy of an epoch above them."""
_HEADROOM = 1.18
"""The end of the axis relative to the highest interval, with room for the chances."""


def expected_costs(
    job: v1.Job,
    details: v1.JobDetails,
    preview: Sequence[v1.PreviewedChoice],
    statistics: v1.JobStatistics,
    factors: v1.Factors,
) -> Chart:
    """What a model is expected to cost with each batch size, and which is next.

    Args:
        job: the job.
        details: what it knows about its batch sizes.
        preview: what its next launch may get.
        statistics: its figures.
        factors: the operator's factors.
    """
    name, title = "arms", "Expected cost by batch size"
    chances = {choice.batch_size: choice.probability for choice in preview}
    known = beliefs(details)
    trials = {each.batch_size: each for each in statistics.trials}
    rows = []
    for state in details.batch_size_states:
        chance = chances.get(state.batch_size, 0.0)
        of_size = trials.get(state.batch_size, v1.TrialStatistics())
        rows.append(_belief_row(job, state, known[state.batch_size], chance, trials=of_size, factors=factors))
    columns = (
        "batch size",
        "state",
        "expected cost",
        "±",
        *(("mean money of a delivery",) if has_prices(factors) else ()),
        "chance of being next",
        "reached / missed / failed",
        "why",
    )
    means = [belief.mean for belief in known.values() if belief.mean is not None]
    if not means:
        untouched = all(may_be_chosen(state) and not state.pinned for state in details.batch_size_states)
        return Chart(name, title) if untouched and not job.num_trials else Chart(name, title, "", columns, rows)
    ceiling = _ceiling(means, known)
    values = [
        _belief_value(state, known[state.batch_size], chances.get(state.batch_size, 0.0), ceiling)
        for state in details.batch_size_states
        if known[state.batch_size].mean is not None
    ]
    labels = _LABELS if len(details.batch_size_states) <= _NARROW else 1
    for value in sorted(values, key=lambda value: -value["chance"])[labels:]:
        value["label"] = ""
    caption = (
        f"What a model is expected to cost with each batch size, failures included; {PLUS_MINUS} The percentage is the "
        "chance of being next; a hollow symbol is a batch size that may not be chosen now."
    )
    if any(value["above"] for value in values):
        caption += " A grey arrow: it goes on above the chart; the table has all values."
    spec = base(values, _belief_layers(job, _HEADROOM * ceiling))
    return Chart(name, title, caption, columns, rows, spec)


def _ceiling(means: Sequence[float], known: Mapping[int, Belief]) -> float:
    """Where intervals are cut off: long ones, and batch sizes that are far too expensive, leave room for others."""
    highest = max(mean for mean in means if mean <= _FAR * max(0.0, min(means)) or mean == min(means))
    ends = [mean + (deviation or 0.0) for mean, deviation in known.values() if mean is not None]
    return min(max(ends), _LONG * highest) or 1.0


def _belief_row(
    job: v1.Job,
    state: v1.BatchSizeState,
    belief: Belief,
    chance: float,
    *,
    trials: v1.TrialStatistics,
    factors: v1.Factors,
) -> tuple[Cell, ...]:
    size = state.batch_size
    return (
        Link(str(size), page("job/trials", id=job.spec.job_id, batch=size)),
        status_name(state),
        "–" if belief.mean is None else cost(belief.mean),
        "–" if belief.deviation is None else f"± {cost(belief.deviation)}",
        *((mean_money(trials, factors) or "–",) if has_prices(factors) else ()),
        percent(chance),
        f"{trials.num_deliveries} / {trials.num_missed} / {state.num_failed}",
        state.reason,
    )


def _belief_value(state: v1.BatchSizeState, belief: Belief, chance: float, ceiling: float) -> Spec:
    mean, spread = belief.mean or 0.0, belief.deviation or 0.0
    return {
        "batch": str(state.batch_size),
        "y": rounded(min(mean, ceiling)),
        "low": rounded(min(max(0.0, mean - spread), ceiling)),
        "high": rounded(min(mean + spread, ceiling)),
        "above": mean + spread > ceiling,
        "out": mean > ceiling,
        "chance": rounded(chance),
        "label": percent(chance) if chance else "",
        "text": f"{cost(mean)} ± {cost(spread)}",
        "next": percent(chance),
        "state": status_name(state),
        "open": not (state.pinned or may_be_chosen(state)),
    }


def _belief_layers(job: v1.Job, top: float) -> list[Spec]:
    x, y = batch_axis(job.spec.batch_sizes), unit_axis("y", "expected cost", [top], high=top)
    batch = batch_encoding(job.spec.batch_sizes)
    tips = tooltip(
        ("batch", "batch size"), ("text", "expected cost"), ("state", "state"), ("next", "chance of being next")
    )

    def points(condition: str, *, filled: bool) -> Spec:
        return {
            "mark": {"type": "point", "size": 90, "strokeWidth": 2, "opacity": 1, "aria": False, "filled": filled},
            "transform": [{"filter": condition}],
            "encoding": {"x": x, "y": y, **batch, "tooltip": tips},
        }

    return [
        {
            "mark": {"type": "rule", "strokeWidth": 2, "aria": False},
            "encoding": {"x": x, "y": {**y, "field": "low"}, "y2": {"field": "high"}, "color": batch["color"]},
        },
        points("!datum.open && !datum.out", filled=True),
        points("datum.open && !datum.out", filled=False),
        {
            "mark": {"type": "text", "baseline": "top", "fontSize": 11, "color": INK, "aria": False},
            "transform": [{"filter": "datum.label"}],
            "encoding": {"x": x, "y": {"value": 2}, "text": {"field": "label"}},
        },
        {
            "mark": {"type": "point", "shape": "triangle-up", "size": 34, "filled": True, "color": INK, "aria": False},
            "transform": [{"filter": "datum.above"}],
            "encoding": {"x": x, "y": {**y, "field": "high"}, "tooltip": tips},
        },
    ]


def epochs(job: v1.Job, statistics: v1.JobStatistics) -> Chart:
    """Epochs to the target, and energy of an epoch, by batch size."""
    name, title = "epochs", "Epochs to the target"
    known = [each for each in statistics.trials if each.mean_epochs > 0]
    if not known:
        return Chart(name, title)
    values: list[Spec] = []
    rows: list[tuple[Cell, ...]] = []
    for each in known:
        size, count, mean = each.batch_size, each.num_deliveries, each.mean_epochs
        least, most = each.least_epochs, each.most_epochs
        per_epoch = energy(each.mean_epoch_energy_joules) if each.HasField("mean_epoch_energy_joules") else "–"
        link = Link(str(size), page("job/trials", id=job.spec.job_id, batch=size, result="reached"))
        rows.append((link, f"{count:,}", number(mean), f"{least:,} to {most:,}", per_epoch))
        text = {"text": number(mean), "range": f"{least:,} to {most:,}", "energy": per_epoch}
        values.append({"batch": str(size), "y": mean, "low": least, "high": most, **text})
    x = batch_axis([each.batch_size for each in known])
    y = unit_axis("y", "epochs", [1.1 * value["high"] for value in values], units=((1.0, ""),))
    batch = batch_encoding(job.spec.batch_sizes)
    tips = tooltip(
        ("batch", "batch size"), ("text", "mean epochs"), ("range", "range"), ("energy", "energy of an epoch")
    )
    layers: list[Spec] = [
        {
            "mark": {"type": "rule", "strokeWidth": 2, "aria": False},
            "encoding": {"x": x, "y": {**y, "field": "low"}, "y2": {"field": "high"}, "color": batch["color"]},
        },
        {
            "mark": {"type": "point", "filled": True, "size": 90, "opacity": 1, "aria": False},
            "encoding": {"x": x, "y": y, **batch, "tooltip": tips},
        },
    ]
    caption = "Mean epochs of deliveries, with their range."
    if len(values) <= _TEXTS:
        caption = f"{caption[:-1]}; above each, the mean energy of an epoch."
        layers.append(
            {
                "mark": {"type": "text", "baseline": "bottom", "dy": -4, "fontSize": 11, "color": INK, "aria": False},
                "encoding": {"x": x, "y": {**y, "field": "high"}, "text": {"field": "energy"}},
            }
        )
    columns = ("batch size", "deliveries", "mean epochs", "range", "energy of an epoch")
    return Chart(name, title, caption, columns, rows, base(values, layers))


def power(job: v1.Job, details: v1.JobDetails, profiles: Sequence[v1.PowerProfile]) -> Chart:
    """What a step takes at each power limit."""
    name, title = "power", "Power limits"
    if not profiles:
        return Chart(name, title)
    chosen = {limit.batch_size: limit.power_setting.limit_watts_per_gpu for limit in details.power_limits}
    found = [(profile, limit) for profile in profiles for limit in profile.limits]
    # Without energy, time alone tells something.
    measured = any(step_energy(limit) is not None for _, limit in found)
    values = [_limit_value(profile, limit, chosen, measured=measured) for profile, limit in found]
    shown = [value["y"] for value in values if value["y"] is not None]
    x = number_axis("x", "power limit of a GPU", unit="W")
    units = JOULES if measured else ((1.0, "s"), (1e-3, "ms"))
    y = unit_axis("y", "energy of a step" if measured else "time of a step", shown, units=units)
    batch = batch_encoding(job.spec.batch_sizes, {profile.batch_size for profile in profiles})
    tips = tooltip(
        ("batch", "batch size"),
        ("text", "limit"),
        ("energy", "energy of a step"),
        ("time", "time of a step"),
        ("cost", "cost of a step"),
        ("trial", "trial"),
    )
    linked: Spec = {"x": x, "y": y, "tooltip": tips, "href": {"field": "href"}}
    mark: Spec = {"type": "point", "aria": False, "cursor": "pointer"}
    layers: list[Spec] = [
        {"mark": {"type": "line", "aria": False}, "encoding": {"x": x, "y": y, "color": batch["color"]}},
        {"mark": {**mark, "filled": True, "size": 34, "opacity": 1}, "encoding": {**linked, **batch}},
        {
            "mark": {**mark, "shape": "circle", "size": 190, "strokeWidth": 1.5, "color": INK},
            "transform": [{"filter": "datum.best"}],
            "encoding": linked,
        },
    ]
    caption = (
        f"{'Energy' if measured else 'Time'} of a training step by power limit, of each batch size's newest profile; "
        "a ring marks the chosen limit. The table has time and cost, too."
    )
    columns = (
        "batch size",
        "limit of a GPU",
        "time of a step",
        "energy of a step",
        "cost of a step",
        "chosen",
        "trial",
    )
    rows = [_limit_row(job, profile, limit, chosen) for profile, limit in found]
    links = {"calculate": f"'{page('trial', job=job.spec.job_id, number='')}' + datum.trial", "as": "href"}
    return Chart(name, title, caption, columns, rows, base(values, layers, computed=[links]))


def _limit_value(
    profile: v1.PowerProfile, limit: v1.ProfiledLimit, chosen: Mapping[int, float], *, measured: bool
) -> Spec:
    joules, seconds = step_energy(limit), limit.time_seconds_per_step
    return {
        "batch": str(profile.batch_size),
        "x": limit.power_setting.limit_watts_per_gpu,
        "y": (None if joules is None else rounded(joules)) if measured else rounded(seconds),
        "best": chosen.get(profile.batch_size) == limit.power_setting.limit_watts_per_gpu,
        "text": f"{limit.power_setting.limit_watts_per_gpu:g} W",
        "energy": "–" if joules is None else cost(joules),
        "time": step_time(seconds),
        "cost": cost(limit.cost_per_step),
        "trial": profile.trial_number,
    }


def _limit_row(
    job: v1.Job, profile: v1.PowerProfile, limit: v1.ProfiledLimit, chosen: Mapping[int, float]
) -> tuple[Cell, ...]:
    joules = step_energy(limit)
    return (
        str(profile.batch_size),
        f"{limit.power_setting.limit_watts_per_gpu:g} W",
        step_time(limit.time_seconds_per_step),
        "–" if joules is None else cost(joules),
        cost(limit.cost_per_step),
        "chosen" if chosen.get(profile.batch_size) == limit.power_setting.limit_watts_per_gpu else "",
        Link(str(profile.trial_number), page("trial", job=job.spec.job_id, number=profile.trial_number)),
    )
