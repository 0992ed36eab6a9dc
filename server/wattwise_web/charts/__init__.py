"""The charts of a page: functions from data to marks, each chart with the table of what it shows.

A batch size has one color and one symbol in all charts of a job. Axes of costs, energies, times and epochs begin at
zero, end above the highest mark, and carry one unit.
"""

from wattwise_web.charts.batch_sizes import epochs, expected_costs, power
from wattwise_web.charts.curves import Curve, curves
from wattwise_web.charts.marks import Chart, Link
from wattwise_web.charts.months import spent_by_month
from wattwise_web.charts.trials import History, cost_by_trial, cost_per_delivery, highest_cost, saved_so_far

__all__ = [
    "Chart",
    "Curve",
    "History",
    "Link",
    "cost_by_trial",
    "cost_per_delivery",
    "curves",
    "epochs",
    "expected_costs",
    "highest_cost",
    "power",
    "saved_so_far",
    "spent_by_month",
]
