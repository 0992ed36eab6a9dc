"""The trend of a job: what a model took in each calendar month."""

from __future__ import annotations

from wattwise import v1
from wattwise.presentation.sentences import main_quantity, month_name

from wattwise_web.amounts import JOULES
from wattwise_web.charts.base import GOOD, Chart, Spec, base, rounded, tooltip, unit_axis

_LEAST_MONTHS = 2
"""One month is no trend."""


def model_by_month(statistics: v1.JobStatistics, factors: v1.Factors) -> Chart:
    """What all trials of a month took, by its deliveries: in money where that is known, else in cost."""
    name, title = "months", "A model by month"
    quantity = main_quantity(statistics.savings, factors)
    if len(statistics.months) < _LEAST_MONTHS:
        return Chart(name, title)
    values: list[Spec] = []
    rows = []
    for month in statistics.months:
        each = quantity.of(month.spent_per_delivery) if month.num_deliveries else None
        spent = quantity.of(month.spent)
        text = "–" if each is None else quantity.text(each)
        rows.append((month_name(month), f"{month.num_deliveries:,}", text, quantity.text(spent)))
        if each is not None:
            values.append(
                {"month": month_name(month), "each": rounded(each), "text": text, "spent": quantity.text(spent)}
            )
    if not values:
        return Chart(name, title)
    units = ((1.0, factors.currency),) if quantity.name == "money" else JOULES
    x: Spec = {
        "field": "month",
        "type": "ordinal",
        "sort": None,
        "axis": {"title": "month (UTC)", "labelAngle": 0, "labelOverlap": True},
    }
    y = unit_axis("each", f"{quantity.name} of a model", [value["each"] for value in values], units=units)
    lines = tooltip(("month", "month"), ("text", "a model"), ("spent", "spent in all"))
    bars: Spec = {
        "mark": {"type": "bar", "color": GOOD, "aria": False},
        "encoding": {"x": x, "y": y, "tooltip": lines},
    }
    caption = "What all trials of a month took, missed and failed ones included, divided by its deliveries."
    return Chart(name, title, caption, ("month", "deliveries", "a model", "spent"), rows[::-1], base(values, [bars]))
