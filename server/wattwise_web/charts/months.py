"""The trend of a job: what was spent per delivery in each calendar month."""

from __future__ import annotations

from wattwise import v1
from wattwise.presentation.sentences import main_quantity, month_name

from wattwise_web.amounts import UNKNOWN
from wattwise_web.charts.marks import JOULES, Bars, Chart, Drawing, Names, Point, Source, Tip, amount_axis

_LEAST_MONTHS = 2
"""One month is no trend."""


def spent_by_month(statistics: v1.JobStatistics, factors: v1.Factors) -> Chart | None:
    """Returns what was spent per delivery in each month, in money if there are prices, else in cost."""
    quantity = main_quantity(statistics.savings, factors, mark="")
    if len(statistics.months) < _LEAST_MONTHS:
        return None
    points, rows = [], []
    for month in statistics.months:
        each = quantity.of(month.spent_per_delivery) if month.num_deliveries else None
        name, spent = month_name(month), quantity.text(quantity.of(month.spent))
        text = UNKNOWN if each is None else quantity.text(each)
        rows.append((name, f"{month.num_deliveries:,}", text, spent))
        if each is not None:
            points.append(Point(name, each, texts=(text, spent)))
    if not points:
        return None
    units = ((1.0, factors.currency),) if quantity.name == "money" else JOULES
    y = amount_axis(f"{quantity.name} per delivery", [point.y for point in points if point.y is not None], units=units)
    bars = Bars(points, (Tip("month", Source.X), Tip("spent per delivery"), Tip("spent in all")))
    return Chart(
        "months",
        "Spent per delivery by month",
        ("month", "deliveries", "spent per delivery", "spent"),
        rows[::-1],
        Drawing(Names("month (UTC)", [str(point.x) for point in points]), y, [bars]),
        "The cost of all trials of a month, missed and failed ones included, divided by the deliveries of that month.",
    )
