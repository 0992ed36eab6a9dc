"""Charts by trial, or by date: what each one cost, what was saved, and what a delivery has cost two jobs."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate
from typing import NamedTuple

from wattwise import v1
from wattwise.presentation.quantities import epochs, joules, moment
from wattwise.presentation.states import end_reason, trial_result

from wattwise_web.amounts import UNKNOWN
from wattwise_web.charts.marks import (
    GOOD,
    MOST_ROWS,
    PAIR,
    Band,
    Cell,
    Chart,
    Dots,
    Drawing,
    Lines,
    Link,
    Look,
    Mark,
    Palette,
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

_EXPLAINED = 100
"""The number of newest trials whose tooltips say why their batch size was chosen."""
_LINE = 250
"""The most points of a line."""


class History(NamedTuple):
    """The statistics of a job, and its ended trials in ranges."""

    statistics: v1.JobStatistics
    buckets: Sequence[v1.TrialBucket] = ()
    savings_points: Sequence[v1.SavingsPoint] = ()


def cost_by_trial(
    job: v1.Job,
    details: v1.JobDetails,
    history: History,
    bound: float | None = None,
    *,
    name: str = "cost",
    title: str = "Cost by trial",
    sizes: Iterable[int] = (),
    top: float | None = None,
) -> Chart | None:
    """Returns the cost of every trial, or of ranges of trials.

    Args:
        job: the job.
        details: what it knows, with the changes that it has detected.
        history: its trials.
        bound: the cost at which its newest trial is stopped; None without a bound.
        name: the name of the chart's element.
        title: the heading.
        sizes: the batch sizes that have colors; by default those of the job.
        top: where the vertical axis ends, so that two charts can be compared.
    """
    buckets = [bucket for bucket in history.buckets if math.isfinite(bucket.median_cost)]
    if not buckets:
        return None
    single = all(bucket.first_trial == bucket.last_trial for bucket in buckets)
    explained = len(buckets) - _EXPLAINED
    points = [_point(bucket, single=single, explained=at >= explained) for at, bucket in enumerate(buckets)]
    lines = _lines(job, history.statistics, bound)
    highest = highest_cost(history)
    shown = {bucket.batch_size for bucket in buckets if not bucket.excluded}
    job_id = job.spec.job_id
    drawing = Drawing(
        whole_axis("trial", points),
        amount_axis("cost", [highest, *(line.at for line in lines if line.at <= 2 * highest)], high=top),
        [*lines, *_changes(details.changes, _dates(buckets)), _dots(job_id, points, single=single)],
        batch_palette(sizes or job.spec.batch_sizes, shown),
        height=260,
    )
    columns = ("trial", "batch size", "cost", *(() if single else ("range",)), "result", "epochs", "ended")
    newest = buckets[: -MOST_ROWS - 1 : -1]
    return Chart(
        name,
        title,
        (*columns, *(("why this batch size",) if single else ())),
        [_row(job_id, bucket, single=single) for bucket in newest],
        drawing,
        _caption(details, {point.look for point in points}, single=single),
        wide=True,
        struck=frozenset(place for place, bucket in enumerate(newest) if bucket.excluded),
        more_rows=max(0, len(buckets) - MOST_ROWS),
    )


def highest_cost(history: History) -> float:
    """Returns the highest cost that a chart shows: excluded trials may be out of it."""
    counted = [bucket for bucket in history.buckets if not bucket.excluded] or history.buckets
    costs = [value for bucket in counted for value in (bucket.median_cost, bucket.most_cost) if math.isfinite(value)]
    return max(costs, default=0.0)


def _point(bucket: v1.TrialBucket, *, single: bool, explained: bool) -> Point:
    """Returns a trial, or the median of a range of trials."""
    size, first, last = str(bucket.batch_size), bucket.first_trial, bucket.last_trial
    if bucket.excluded:
        look = Look.EXCLUDED
    elif bucket.num_trials > 0 and bucket.num_undecided == bucket.num_trials:
        look = Look.FAILED
    else:
        look = Look.FILLED if bucket.num_deliveries else Look.HOLLOW
    result, mean = _result(bucket, single=single), epochs(bucket.mean_epochs)
    date = bucket.last_end_time.seconds if bucket.HasField("last_end_time") else None
    if single:
        texts = (result, mean, bucket.reason if explained else "")
        return Point(first, bucket.median_cost, size, look, date=date, texts=texts)
    return Point(
        (first + last) / 2,
        bucket.median_cost,
        size,
        look,
        bucket.least_cost,
        bucket.most_cost,
        date,
        texts=(f"{first}–{last}", result, mean),
        target=f"{size}&from={last}",
    )


def _dots(job_id: str, points: Sequence[Point], *, single: bool) -> Dots:
    batch, ended = Tip("batch size", Source.SERIES), Tip("ended" if single else "last one ended", Source.DATE)
    if single:
        tips = [
            Tip("trial", Source.X),
            batch,
            Tip("cost", Source.COST),
            Tip("result"),
            ended,
            Tip("epochs"),
            Tip("why this batch size"),
        ]
        return Dots(points, tips, page("trial", job=job_id, number=""), size=56)
    tips = [Tip("trials"), batch, Tip("median cost", Source.COST), Tip("result"), ended, Tip("mean epochs")]
    address = page("job/trials", id=job_id, batch="")
    return Dots(points, tips, address, size=56, range_opacity=0.45)


def _result(bucket: v1.TrialBucket, *, single: bool) -> str:
    if single:
        status = v1.TRIAL_STATUS_FAILED if bucket.num_undecided else v1.TRIAL_STATUS_DECIDED
        word = trial_result(end_reason(bucket.end_reason), reached=bucket.num_deliveries > 0, status=status)
    else:
        word = f"{bucket.num_deliveries} of {bucket.num_trials} delivered"
    return f"{word}, excluded" if bucket.excluded else word


def _lines(job: v1.Job, statistics: v1.JobStatistics, bound: float | None) -> list[Rule]:
    """Returns what a delivery costs with the default on average, and where the newest trial is stopped."""
    lines, of_cost = [], statistics.savings.cost
    if of_cost.HasField("default_mean") and math.isfinite(of_cost.default_mean):
        text = f"default {job.spec.default_batch_size}, mean of its deliveries: {joules(of_cost.default_mean)}"
        lines.append(Rule("y", of_cost.default_mean, text=text, title="line", in_legend=True))
    if bound is not None and math.isfinite(bound):
        text = f"bound of the newest trial: {joules(bound)}"
        lines.append(Rule("y", bound, (4, 4), text, "line", in_legend=True))
    return lines


def _changes(changes: Sequence[v1.DetectedChange], dates: Callable[[int], int | None]) -> list[Rule]:
    """Returns a vertical line before the first trial since each change."""
    return [
        Rule("x", since - 0.5, (2, 3), change.message, "changed", date=dates(since - 1))
        for change in changes
        for since in [change.since_trial]
    ]


def _dates(buckets: Sequence[v1.TrialBucket]) -> Callable[[int], int | None]:
    """Returns a function to when the trials up to a number had ended, in seconds; None if that is not known."""
    ended_ones = [bucket for bucket in buckets if bucket.HasField("last_end_time")]
    trials = [bucket.last_trial for bucket in ended_ones]
    dates = list(accumulate((bucket.last_end_time.seconds for bucket in ended_ones), max))

    def date(trial: int) -> int | None:
        place = bisect_right(trials, trial)
        return dates[place - 1] if place else None

    return date


_LEGEND = {
    Look.FILLED: "filled: it delivered a model",
    Look.HOLLOW: "hollow: it missed the target",
    Look.FAILED: "✕: it failed",
    Look.EXCLUDED: "grey and struck through: excluded, so it does not count",
}


def _caption(details: v1.JobDetails, looks: set[Look], *, single: bool) -> str:
    """Returns what the marks mean."""
    each = (
        "Each mark is a trial" if single else "Each mark is the median of a range of trials, and its line their range"
    )
    meanings = "; ".join(text for look, text in _LEGEND.items() if look in looks)
    return f"{each}; {meanings}." + "".join(f" A vertical line: {change.message}." for change in details.changes)


def _row(job_id: str, bucket: v1.TrialBucket, *, single: bool) -> tuple[Cell, ...]:
    size, median = str(bucket.batch_size), joules(bucket.median_cost)
    when = moment(bucket.last_end_time) if bucket.HasField("last_end_time") else UNKNOWN
    tail = (_result(bucket, single=single), epochs(bucket.mean_epochs), when)
    if single:
        link = Link(str(bucket.first_trial), page("trial", job=job_id, number=bucket.first_trial))
        return link, size, median, *tail, bucket.reason or UNKNOWN
    ends = f"{joules(bucket.least_cost)} to {joules(bucket.most_cost)}"
    href = page("job/trials", id=job_id, batch=size, **{"from": bucket.last_trial})
    return Link(f"{bucket.first_trial}–{bucket.last_trial}", href), size, median, ends, *tail


def saved_so_far(job: v1.Job, history: History) -> Chart | None:
    """Returns the saving up to each trial, and where it broke even."""
    statistics, dates = history.statistics, _dates(history.buckets)
    known = [point for point in history.savings_points if point.HasField("saved_cost")]
    if not known:
        return None
    points = [_saved(point, dates(point.trial_number)) for point in thinned(known, _LINE)]
    estimates = [point.y for point in points if point.y is not None]
    bounds = [point.low for point in points if point.low is not None]
    # A lower bound may be far below: it would leave the estimate no room.
    span = max([0.0, *estimates]) - min([0.0, *estimates])
    floor = min([0.0, *estimates]) - 2 * span
    is_clipped = span > 0 and min(bounds, default=0.0) < floor
    tips = (Tip("trial", Source.X), Tip("cautious estimate", Source.COST), Tip("at least"))
    marks: list[Mark] = [
        Rule("y", 0),
        Band(points),
        Lines(points, width=1.5, dash=(5, 3), color=GOOD),
        Lines(points, "low", width=2.2, color=GOOD),
        Dots(points, tips, page("trial", job=job.spec.job_id, number=""), size=120),
    ]
    caption = (
        "The solid line is what was saved at least, the dashed line is a cautious estimate. Both follow from what is "
        "known of the default today. Below zero, nothing is saved yet. A loss is computed from what a model "
        "takes with the default, so it is smaller than these lines show."
    )
    if is_clipped:
        caption += " The solid line goes on below the chart; the table has all its values."
    if since := statistics.savings.compared_from_trial:
        caption += f" Only trials from {since} on are counted, because the job's behaviour changed there."
    if statistics.HasField("break_even_trial"):
        trial = statistics.break_even_trial
        marks.append(Rule("x", trial, (2, 3), date=dates(trial)))
        caption += f" The vertical line is the break-even, at trial {trial}."
    y = amount_axis("saved cost", [*estimates, *bounds], low=floor if is_clipped else None)
    return Chart(
        "savings",
        "Saved so far",
        ("up to trial", "deliveries", "cautious estimate", "at least"),
        [
            (str(point.trial_number), f"{point.num_compared_deliveries:,}", joules(point.saved_cost), _at_least(point))
            for point in known[: -MOST_ROWS - 1 : -1]
        ],
        Drawing(whole_axis("trial", points), y, marks),
        caption,
        more_rows=max(0, len(known) - MOST_ROWS),
    )


def _saved(point: v1.SavingsPoint, date: int | None) -> Point:
    low = point.saved_cost_at_least if point.HasField("saved_cost_at_least") else None
    return Point(point.trial_number, point.saved_cost, look=Look.HIDDEN, low=low, date=date, texts=(_at_least(point),))


def _at_least(point: v1.SavingsPoint) -> str:
    return joules(point.saved_cost_at_least) if point.HasField("saved_cost_at_least") else UNKNOWN


def cost_per_delivery(found: Sequence[tuple[v1.Job, History]]) -> Chart | None:
    """Returns what a delivery has cost each of two jobs up to each trial."""
    tips = (
        Tip("job", Source.SERIES),
        Tip("up to trial", Source.X),
        Tip("deliveries"),
        Tip("spent per delivery", Source.COST),
    )
    marks: list[Mark] = []
    points: list[Point] = []
    for job, history in found:
        job_id, dates = job.spec.job_id, _dates(history.buckets)
        of_job = [
            Point(
                at.trial_number,
                at.cost_per_delivery,
                job_id,
                date=dates(at.trial_number),
                texts=(f"{at.num_deliveries:,}",),
            )
            for at in thinned(history.savings_points, _LINE)
            if at.HasField("cost_per_delivery") and math.isfinite(at.cost_per_delivery)
        ]
        points += of_job
        marks += [Lines(of_job), Dots(of_job, tips, page("trial", job=job_id, number=""), size=26)]
    if not points:
        return None
    names = [job.spec.job_id for job, _ in found]
    costs = [point.y for point in points if point.y is not None]
    newest = sorted(points, key=lambda point: -float(point.x))
    rows = [
        (Link(of.series, page("job", id=of.series)), str(of.x), of.texts[0], joules(of.y or 0.0))
        for of in newest[:MOST_ROWS]
    ]
    palette = Palette("job", dict(zip(names, PAIR, strict=True)), names, columns=1)
    y = amount_axis("spent per delivery", costs)
    return Chart(
        "per-delivery",
        "Spent per delivery",
        ("job", "up to trial", "deliveries", "spent per delivery"),
        rows,
        Drawing(whole_axis("trial", points), y, marks, palette, height=260),
        "All cost so far, failed and exploring trials included, divided by the deliveries so far.",
        wide=True,
        more_rows=max(0, len(points) - MOST_ROWS),
    )
