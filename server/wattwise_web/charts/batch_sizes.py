"""Charts by batch size: what a model is expected to cost, epochs to the target, and power limits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from wattwise import v1
from wattwise.presentation import quantities
from wattwise.presentation.quantities import PLUS_MINUS, energy, joules, percent, step_energy, step_time
from wattwise.presentation.sentences import has_prices, mean_money
from wattwise.presentation.states import BatchSize, batch_sizes, may_be_chosen, status_name

from wattwise_web.amounts import UNKNOWN
from wattwise_web.charts.marks import (
    JOULES,
    Cell,
    Chart,
    Dots,
    Drawing,
    Labels,
    Lines,
    Link,
    Look,
    Mark,
    Numbers,
    Point,
    Source,
    Tip,
    amount_axis,
    batch_axis,
    batch_palette,
    page,
)

_FAR = 10
"""A batch size may lie outside the chart if its expected cost is more than this many times the lowest one."""
_LONG = 2
"""The end of an interval is at most this many times the highest expected cost in the chart."""
_LABELS, _NARROW = 3, 12
"""The chart shows the chances of the `_LABELS` likeliest batch sizes, or of one among more than `_NARROW`."""
_TEXTS = 5
"""The most batch sizes in a chart that shows the energy of an epoch above each."""
_HEADROOM = 1.18
"""The end of the axis relative to the highest interval, with room for the chances."""


def expected_costs(
    job: v1.Job,
    details: v1.JobDetails,
    preview: Sequence[v1.PreviewedChoice],
    statistics: v1.JobStatistics,
    factors: v1.Factors,
) -> Chart | None:
    """Returns the expected cost of a model with each batch size, and the chance that the next launch gets it.

    Args:
        job: the job.
        details: what it knows about its batch sizes.
        preview: what its next launch may get.
        statistics: its figures.
        factors: the operator's factors.
    """
    sizes = batch_sizes(details, statistics)
    chances = {choice.batch_size: choice.probability for choice in preview}
    known = [each for each in sizes if each.expected_cost is not None]
    if not known and not job.num_trials and all(may_be_chosen(each.state) and not each.state.pinned for each in sizes):
        return None
    rows = [_belief_row(job, each, chances.get(each.state.batch_size, 0.0), factors) for each in sizes]
    columns = (
        "batch size",
        "state",
        "expected cost",
        "±",
        *(("mean money of a delivery",) if has_prices(factors) else ()),
        "chance of being next",
        "reached / missed / undecided",
        "why",
    )
    name, title = "arms", "Expected cost by batch size"
    if not known:
        return Chart(name, title, columns, rows)
    ceiling = _ceiling(known)
    points = [_belief_point(each, chances.get(each.state.batch_size, 0.0), ceiling) for each in known]
    tips = (Tip("batch size", Source.X), Tip("expected cost"), Tip("state"), Tip("chance of being next"))
    marks: list[Mark] = [Dots(points, tips), Labels(_chances(chances, points, len(sizes)))]
    above = {str(each.state.batch_size) for each in known if _top(each) > ceiling}
    caption = (
        "The expected cost of a model with each batch size, failures included. "
        f"{PLUS_MINUS} The percentage is the chance of being next. A hollow symbol is a batch size that may not be "
        "chosen now."
    )
    if above:
        arrows = [
            point._replace(y=point.high, look=Look.ARROW, low=None, high=None) for point in points if point.x in above
        ]
        marks.append(Dots(arrows, tips, size=34))
        caption += " A grey arrow marks an interval that goes on above the chart; the table has all values."
    x, y = batch_axis(job.spec.batch_sizes), amount_axis("expected cost", (), high=_HEADROOM * ceiling)
    return Chart(name, title, columns, rows, Drawing(x, y, marks, batch_palette(job.spec.batch_sizes)), caption)


def _interval(size: BatchSize) -> tuple[float, float]:
    """Returns the expected cost and its standard deviation, which are 0 where they are not known."""
    return size.expected_cost or 0.0, size.deviation or 0.0


def _top(size: BatchSize) -> float:
    """Returns the upper end of the interval of an expected cost."""
    return sum(_interval(size))


def _ceiling(known: Sequence[BatchSize]) -> float:
    """Returns where intervals are cut off, so that long or far too expensive ones leave room for others."""
    means = [_interval(each)[0] for each in known]
    highest = max(mean for mean in means if mean <= _FAR * max(0.0, min(means)) or mean == min(means))
    return min(max(map(_top, known)), _LONG * highest) or 1.0


def _chances(chances: Mapping[int, float], points: Sequence[Point], num_sizes: int) -> list[Point]:
    """Returns the chances of the likeliest batch sizes, as labels."""
    shown = [int(point.x) for point in points]
    likely = sorted(shown, key=lambda size: -chances.get(size, 0.0))[: _LABELS if num_sizes <= _NARROW else 1]
    return [Point(str(size), None, texts=(percent(chances[size]),)) for size in likely if chances.get(size)]


def _belief_row(job: v1.Job, size: BatchSize, chance: float, factors: v1.Factors) -> tuple[Cell, ...]:
    state, trials = size.state, size.trials
    return (
        Link(str(state.batch_size), page("job/trials", id=job.spec.job_id, batch=state.batch_size)),
        status_name(state),
        UNKNOWN if size.expected_cost is None else joules(size.expected_cost),
        UNKNOWN if size.deviation is None else f"± {joules(size.deviation)}",
        *((mean_money(trials, factors, mark="") or UNKNOWN,) if has_prices(factors) else ()),
        percent(chance),
        f"{trials.num_deliveries} / {trials.num_missed} / {trials.num_undecided}",
        state.reason,
    )


def _belief_point(size: BatchSize, chance: float, ceiling: float) -> Point:
    """Returns an expected cost with its interval, both cut off at the ceiling."""
    state, (mean, spread) = size.state, _interval(size)
    look = Look.FILLED if state.pinned or may_be_chosen(state) else Look.HOLLOW
    name = str(state.batch_size)
    return Point(
        name,
        min(mean, ceiling),
        name,
        Look.HIDDEN if mean > ceiling else look,
        min(max(0.0, mean - spread), ceiling),
        min(mean + spread, ceiling),
        texts=(f"{joules(mean)} ± {joules(spread)}", status_name(state), percent(chance)),
    )


def epochs(job: v1.Job, statistics: v1.JobStatistics) -> Chart | None:
    """Returns the epochs to the target, and the energy of an epoch, by batch size."""
    known = [each for each in statistics.trials if each.mean_epochs > 0]
    if not known:
        return None
    points: list[Point] = []
    rows: list[tuple[Cell, ...]] = []
    labels: list[Point] = []
    for each in known:
        size, least, most = str(each.batch_size), each.least_epochs, each.most_epochs
        per_epoch = energy(each.mean_epoch_energy_joules) if each.HasField("mean_epoch_energy_joules") else UNKNOWN
        texts = (quantities.epochs(each.mean_epochs), f"{least:,} to {most:,}", per_epoch)
        link = Link(size, page("job/trials", id=job.spec.job_id, batch=size, result="reached"))
        rows.append((link, f"{each.num_deliveries:,}", *texts))
        points.append(Point(size, each.mean_epochs, size, low=least, high=most, texts=texts))
        labels.append(Point(size, most, texts=(per_epoch,)))
    tips = (Tip("batch size", Source.X), Tip("mean epochs"), Tip("range"), Tip("energy of an epoch"))
    marks: list[Mark] = [Dots(points, tips)]
    caption = "Mean epochs of deliveries, with their range."
    if len(points) <= _TEXTS:
        caption = f"{caption[:-1]}; above each, the mean energy of an epoch."
        marks.append(Labels(labels))
    x = batch_axis([each.batch_size for each in known])
    y = amount_axis("epochs", [1.1 * point.high for point in points if point.high], units=((1.0, ""),))
    columns = ("batch size", "deliveries", "mean epochs", "range", "energy of an epoch")
    drawing = Drawing(x, y, marks, batch_palette(job.spec.batch_sizes))
    return Chart("epochs", "Epochs to the target", columns, rows, drawing, caption)


def power(job: v1.Job, details: v1.JobDetails, profiles: Sequence[v1.PowerProfile]) -> Chart | None:
    """Returns what a step takes at each power limit."""
    if not profiles:
        return None
    chosen = {limit.batch_size: limit.power_setting.limit_watts_per_gpu for limit in details.power_limits}
    found = [(profile, limit) for profile in profiles for limit in profile.limits]
    # Without energy, time alone tells something.
    measured = any(step_energy(limit) is not None for _, limit in found)
    points, best, rows = [], [], []
    for profile, limit in found:
        measured_joules, seconds, watts = (
            step_energy(limit),
            limit.time_seconds_per_step,
            limit.power_setting.limit_watts_per_gpu,
        )
        texts = (
            f"{watts:g} W",
            step_time(seconds),
            UNKNOWN if measured_joules is None else joules(measured_joules),
            joules(limit.cost_per_step),
        )
        size, trial = str(profile.batch_size), str(profile.trial_number)
        value = measured_joules if measured else seconds
        points.append(Point(watts, value, size, texts=(*texts, trial), target=trial))
        if chosen.get(profile.batch_size) == watts:
            best.append(points[-1]._replace(look=Look.RING))
        link = Link(trial, page("trial", job=job.spec.job_id, number=trial))
        rows.append((size, *texts, "chosen" if chosen.get(profile.batch_size) == watts else "", link))
    address = page("trial", job=job.spec.job_id, number="")
    tips = (
        Tip("batch size", Source.SERIES),
        *map(Tip, ("limit", "time of a step", "energy of a step", "cost of a step", "trial")),
    )
    marks: list[Mark] = [Lines(points), Dots(points, tips, address, size=34), Dots(best, tips, address, size=190)]
    shown = [point.y for point in points if point.y is not None]
    units = JOULES if measured else ((1.0, "s"), (1e-3, "ms"))
    y = amount_axis("energy of a step" if measured else "time of a step", shown, units=units)
    palette = batch_palette(job.spec.batch_sizes, {profile.batch_size for profile in profiles})
    columns = (
        "batch size",
        "limit of a GPU",
        "time of a step",
        "energy of a step",
        "cost of a step",
        "chosen",
        "trial",
    )
    caption = (
        f"{'Energy' if measured else 'Time'} of a training step by power limit, of each batch size's newest profile; "
        "a ring marks the chosen limit. The table has time and cost, too."
    )
    drawing = Drawing(Numbers("power limit of a GPU", unit="W"), y, marks, palette)
    return Chart("power", "Power limits", columns, rows, drawing, caption)
