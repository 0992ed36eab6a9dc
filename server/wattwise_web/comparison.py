"""The key figures of two jobs, and why their costs cannot be compared."""

from __future__ import annotations

from collections.abc import Sequence

from wattwise import v1
from wattwise.monitor.kind import monitor_text
from wattwise.presentation.quantities import duration, energy, epochs, joules, marked
from wattwise.presentation.sentences import main_quantity, shown_saving, why_no_figure
from wattwise.presentation.states import mark_of, policy, target_text
from wattwise.spec import gpus_text, max_power_watts

from wattwise_web.amounts import UNKNOWN


def compared(pairs: Sequence[tuple[v1.Job, v1.JobStatistics]], factors: v1.Factors) -> list[tuple[str, Sequence[str]]]:
    """Returns the key figures of two jobs."""
    one, other = (_figures(job, statistics, factors) for job, statistics in pairs)
    return [(name, (text, other.get(name, UNKNOWN))) for name, text in one.items()]


def _figures(job: v1.Job, statistics: v1.JobStatistics, factors: v1.Factors) -> dict[str, str]:
    spec, spent, each = job.spec, statistics.spent, statistics.spent_per_delivery
    deliveries, cost, mark = statistics.num_deliveries, statistics.savings.cost, mark_of(job)
    quantity, text = main_quantity(statistics.savings, factors, mark), marked(joules, mark)
    saved = (*shown_saving(quantity.saving, quantity.text), why_no_figure(quantity.saving))
    paid = {}
    if quantity.name == "money":
        paid = {"money spent per delivery": quantity.text(each.money) if deliveries else UNKNOWN}
    return {
        "used now": str(job.batch_size_in_use) if job.HasField("batch_size_in_use") else UNKNOWN,
        "default": str(spec.default_batch_size),
        "cost of a model now": text(cost.in_use) if cost.HasField("in_use") else UNKNOWN,
        "cost of a model with the default": text(cost.with_default) if cost.HasField("with_default") else UNKNOWN,
        "trials": f"{job.num_trials:,}",
        "deliveries": f"{deliveries:,}",
        "cost spent per delivery": text(each.cost) if deliveries else UNKNOWN,
        **paid,
        "energy so far": marked(energy, mark)(spent.energy_joules) if spent.HasField("energy_joules") else UNKNOWN,
        "time so far": duration(spent.time_seconds),
        "saved at least, or lost": next(filter(None, saved)),
        "mean epochs of a delivery": epochs(statistics.mean_epochs) if statistics.HasField("mean_epochs") else UNKNOWN,
        "policy": policy(spec),
        "target": target_text(spec),
        "η": f"{spec.eta_knob:g}",
        "GPUs": gpus_text(spec),
        "monitor": monitor_text(job.monitor) or UNKNOWN,
    }


def incomparable(one: v1.Job, other: v1.Job) -> list[str]:
    """Returns why the costs of two jobs cannot be compared."""
    notes = []
    if one.spec.eta_knob != other.spec.eta_knob:
        notes.append(
            f"The costs weigh energy and time differently: η is {one.spec.eta_knob:g} and {other.spec.eta_knob:g}."
        )
    elif one.spec.eta_knob < 1 and max_power_watts(one.spec) != max_power_watts(other.spec):
        notes.append(
            "The costs count time at different powers: the GPUs of the jobs may draw different maximum powers."
        )
    if one.monitor.kinds and other.monitor.kinds and set(one.monitor.kinds) != set(other.monitor.kinds):
        monitors = f"{monitor_text(one.monitor)} and {monitor_text(other.monitor)}"
        notes.append(f"The energy was measured by different monitors: {monitors}.")
    if one.spec.target != other.spec.target:
        notes.append("The targets differ, so a delivery of one job is not that of the other.")
    return notes
