"""What the page says of savings, from the figures of a real server."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from wattwise import Client, v1
from wattwise.presentation.savings import amounts_of
from wattwise.presentation.sentences import total_answer
from wattwise_web import charts

from tests.jobs import Trainer
from tests.live_server import LiveServer
from tests.web.conftest import FACTORS
from tests.web.test_pages import DASH


def pinned_runs(server: LiveServer, trainer: Trainer, batch_size: int, costs: Sequence[float | None]) -> None:
    """Runs trials of this batch size that reach the target at these costs."""
    request = v1.SetPinnedBatchSizeRequest(job_id=trainer.job_id, batch_size=batch_size)
    server.admin.SetPinnedBatchSize(request)
    for cost in costs:
        trainer.run(cost)


def job(
    server: LiveServer, name: str, default: Sequence[float | None], other: Sequence[float | None], eta_knob: float = 1.0
) -> str:
    """The id of a job with these costs of its default and of another batch size, and with a prefix of its own."""
    trainer = Trainer(server.trainer, job_id_prefix=name, job_id=name, eta_knob=eta_knob)
    pinned_runs(server, trainer, 16, default)
    pinned_runs(server, trainer, 8, other)
    return name


def test_unmeasured_energy_has_no_money(tmp_path: Path) -> None:
    """Without energy there is no money and no CO2, which follow from it: of one job or of many."""
    with LiveServer(tmp_path) as server, Client(server.start(*FACTORS)) as client:
        factors = client.get_server_info().factors
        job_id = job(server, "time", [None] * 6, [None] * 4, eta_knob=0.0)
        rows = amounts_of(client.get_job_statistics(job_id).savings, factors, mark="")
        total = total_answer(client.get_totals(), factors)
    assert [(row.name, row.spent == "not measured") for row in rows] == [
        ("cost", False),
        ("energy", True),
        ("time", False),
    ]
    assert "EUR" not in total.figure


def test_several_jobs_have_the_verdict_of_a_single_one(tmp_path: Path) -> None:
    """A gain, a loss, and jobs that only ran their default, which is no loss; alone each has its own verdict."""
    with LiveServer(tmp_path) as server, Client(server.start()) as client:
        job(server, "gain", [100.0] * 6, [10.0] * 40)
        job(server, "loss", [10.0] * 6, [100.0] * 10)
        job(server, "same", [10.0] * 12, [])
        found = {name: client.get_totals(job_id_prefix=name) for name in ("gain", "loss", "same", "none")}
        alone = {name: client.get_job_statistics(name).savings.cost.verdict for name in ("gain", "loss", "same")}
    shown = {name: total_answer(each, v1.Factors()) for name, each in found.items()}
    assert {name: found[name].savings.cost.verdict for name in alone} == alone
    assert (shown["gain"].kind, shown["gain"].figure) == ("saving", "2.58 kJ")
    assert (shown["loss"].kind, shown["loss"].figure) == ("loss", "900 J")
    assert (shown["same"].kind, shown["same"].figure) == ("uncertain", "")
    assert (shown["none"].kind, found["none"].savings.cost.verdict) == ("none", v1.SAVINGS_VERDICT_NO_DELIVERY)


def test_months_have_a_chart() -> None:
    """In money where there are prices; a month without a delivery has a row and no bar; one month is no trend."""
    main_quantity = v1.SAVINGS_QUANTITY_MONEY
    statistics = v1.JobStatistics(savings=v1.Savings(money=v1.SavingsEstimate(), main_quantity=main_quantity))
    for month, deliveries, spent in ((9, 10, 39.0), (10, 0, 3.0), (11, 12, 31.8)):
        assert charts.spent_by_month(statistics, v1.Factors()) is None or month == 11
        each = v1.Usage(money=spent / deliveries) if deliveries else None
        added = statistics.months.add(
            num_deliveries=deliveries, spent=v1.Usage(money=spent, cost=spent), spent_per_delivery=each
        )
        added.start_time.FromJsonString(f"2026-{month:02}-01T00:00:00Z")
    factors = v1.Factors(gpu_hour_price=1.0, currency="EUR")
    chart = charts.spent_by_month(statistics, factors)
    assert chart is not None
    assert chart.rows[0] == ("November 2026", "12", "2.65 EUR", "31.80 EUR")
    assert chart.rows[1][1:] == ("0", DASH, "3.00 EUR")
    assert chart.drawing is not None
    assert [(point.x, point.y) for point in chart.drawing.points] == [("September 2026", 3.9), ("November 2026", 2.65)]
    assert chart.drawing.y.unit == "EUR"


def test_only_losing_quantities_have_rows_of_a_loss(tmp_path: Path) -> None:
    """Rows are those of a loss if the verdict is one, not if the mean of an uncertain job's default is below it."""
    with LiveServer(tmp_path) as server, Client(server.start()) as client:
        lost = job(server, "loss", [10.0] * 6, [100.0] * 10)
        uncertain = job(server, "uncertain", [10.0] * 6, [10.5] * 10)
        found = {name: client.get_job_statistics(name).savings for name in (lost, uncertain)}
    assert found[uncertain].cost.verdict == v1.SAVINGS_VERDICT_UNCERTAIN
    assert found[uncertain].cost.lost > 0
    rows = {name: amounts_of(each, v1.Factors(), mark="") for name, each in found.items()}
    loses = [(row.name, row.at_least) for row in rows[lost] if row.loses]
    assert loses == [("cost", "nothing"), ("energy", "nothing")]
    assert [row for row in rows[uncertain] if row.loses or row.at_least != "not certain yet" or row.estimate] == []
