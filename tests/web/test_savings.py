"""What the page says of savings, from the figures of a real server."""

from __future__ import annotations

from pathlib import Path

from wattwise import Client, v1
from wattwise.commands.savings import total_savings
from wattwise_web import savings

from tests.jobs import Trainer
from tests.live_server import LiveServer
from tests.web.conftest import FACTORS


def pinned_runs(server: LiveServer, trainer: Trainer, batch_size: int, costs: list[float]) -> None:
    """Runs trials of this batch size that reach the target at these costs."""
    request = v1.SetBatchSizeStateRequest(
        job_id=trainer.job_id, batch_size=batch_size, status=v1.BATCH_SIZE_STATUS_PINNED
    )
    server.admin.SetBatchSizeState(request)
    for cost in costs:
        trainer.run(cost)


def job(server: LiveServer, name: str, default: list[float], other: list[float], eta_knob: float = 1.0) -> str:
    """The id of a job with these costs of its default and of another batch size, and with a prefix of its own."""
    trainer = Trainer(server.trainer, job_id_prefix=name, job_id=name, eta_knob=eta_knob)
    pinned_runs(server, trainer, 16, default)
    pinned_runs(server, trainer, 8, other)
    return name


def test_totals_have_the_verdict_of_the_terminal(tmp_path: Path) -> None:
    """The page says of several jobs what the terminal does: a saving, a loss by the means, or neither."""
    with LiveServer(tmp_path) as server, Client(server.start(*FACTORS)) as client:
        factors = client.get_server_info().factors
        job(server, "gain", [100.0] * 6, [10.0] * 40)
        job(server, "loss", [10.0] * 6, [100.0] * 10)
        job(server, "same", [10.0] * 6, [])
        found = {name: client.get_totals(job_id_prefix=name) for name in ("gain", "loss", "same", "none")}
        assert [total_savings(each).verdict for each in found.values()] == [
            v1.SAVINGS_VERDICT_SAVING,
            v1.SAVINGS_VERDICT_LOSS,
            v1.SAVINGS_VERDICT_UNCERTAIN,
            v1.SAVINGS_VERDICT_NO_BASELINE,
        ]
        shown = {name: savings.total_saved(each, factors) for name, each in found.items()}
    gain, loss, same = shown["gain"], shown["loss"], shown["same"]
    assert gain is not None
    assert (gain.kind, gain.figure, gain.label) == ("gain", "2.58 kJ", "saved at least")
    assert loss is not None
    assert (loss.kind, loss.figure, loss.label) == ("loss", "900 J", "more than the defaults would have taken")
    assert same is not None
    assert (same.kind, same.figure) == ("uncertain", "not certain")
    assert shown["none"] is None


def test_unmeasured_energy_has_no_money(tmp_path: Path) -> None:
    """Without energy the page has neither it nor the money and the CO2 that follow from it: of one job or of many."""
    with LiveServer(tmp_path) as server, Client(server.start(*FACTORS)) as client:
        factors = client.get_server_info().factors
        job_id = job(server, "time", [0.0] * 6, [0.0] * 4, eta_knob=0.0)
        rows = savings.rows_of(client.get_job_statistics(job_id).savings, factors)
        total = savings.total_saved(client.get_totals(), factors)
    assert [row.name for row in rows] == ["time", "cost"]
    assert total is not None
    assert (total.money, total.carbon) == ("", "")


def test_only_losing_jobs_have_rows_of_a_loss(tmp_path: Path) -> None:
    """Rows are those of a loss if the verdict is one, not if the mean of an uncertain job's default is below it."""
    with LiveServer(tmp_path) as server, Client(server.start()) as client:
        lost = job(server, "loss", [10.0] * 6, [100.0] * 10)
        uncertain = job(server, "uncertain", [10.0] * 6, [10.5] * 10)
        found = {name: client.get_job_statistics(name).savings for name in (lost, uncertain)}
    assert found[uncertain].verdict == v1.SAVINGS_VERDICT_UNCERTAIN
    assert found[uncertain].cost.uncorrected < 0
    loses = {
        name: [row.name for row in savings.rows_of(each, v1.Factors()) if row.loses] for name, each in found.items()
    }
    assert loses == {lost: ["energy", "cost"], uncertain: []}
