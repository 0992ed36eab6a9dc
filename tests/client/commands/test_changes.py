"""What the commands say of a job whose behaviour has changed, against the real server."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from wattwise import v1
from wattwise.driver.command import savings_claim
from wattwise.presentation.sentences import main_quantity, spent_per_model
from wattwise.rpc.credentials import Credentials
from wattwise_server.usecases.changes import SHOWN_TRIALS

from tests.changes import Recurring
from tests.client.commands.conftest import Ask, row
from tests.client.commands.test_watch import line_with, on_screen, watching
from tests.live_server import LiveServer
from tests.terminal import on_terminal


@pytest.fixture(scope="module")
def grpc_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    """A server whose default policy detects changes, with prices."""
    with LiveServer(tmp_path_factory.mktemp("changes")) as live:
        live.start("--electricity-price", "360000", "--currency", "EUR")
        yield live


@pytest.fixture
def changed(grpc_server: LiveServer) -> Recurring:
    """A job whose epochs have tripled, without a run of the default since then."""
    job = Recurring(grpc_server)
    job.train(16, 10, times=6)
    job.train(8, 5, times=30)
    job.until_detected(8, 15)
    return job


def test_a_change_is_shown(ask: Ask, changed: Recurring) -> None:
    """`jobs show` has the warning, and the change once the warning is withdrawn; `jobs events` has the event."""
    (change,) = changed.details.changes
    shown = ask("jobs", "show", changed.job_id)
    assert row(shown, "warning")[1].endswith(f": {change.message}")
    assert shown.count(change.message) == 1
    found = ask("jobs", "events", changed.job_id, "--kind", "change-detected", "--no-headers")
    assert found.count("\n") == 1
    assert change.message in found
    changed.train(8, 15, times=SHOWN_TRIALS)
    shown = ask("jobs", "show", changed.job_id)
    assert row(shown, "changed")[1] == change.message
    assert "warning" not in shown


def test_watch_has_the_warning(changed: Recurring, grpc_server: LiveServer) -> None:
    """A line of the job has it as a fact, and a terminal a line above the trials, cut to the width."""
    (change,) = changed.details.changes
    with watching(changed.job_id) as process:
        assert f'warning="{change.message}"' in line_with(process, "job", f"job={changed.job_id}")
    with watching("--prefix", changed.job_id) as process:
        trial = changed.begin(8)
        line = line_with(process, f"job={changed.job_id}", "running=1")
        assert f"since_trial={change.since_trial}" in line
        assert "attention=yes" in line
        changed.report(trial, 150.0, epoch=15)

    def steps() -> Iterator[None]:
        changed.train(8, 15)
        yield
        grpc_server.admin.DeleteJob(v1.DeleteJobRequest(job_id=changed.job_id))
        yield

    number = changed.shown.num_trials + 1
    lines = on_screen([changed.job_id], "warning:", f"{number} ", steps(), TERM="xterm", NO_COLOR="1")
    (warning,) = {line for line in lines if line.startswith("warning:")}
    assert warning.startswith(f"warning: since trial {change.since_trial}, batch size 8 takes 3.0 times")
    assert len(warning) == 80


def test_a_claim_says_from_which_trial_it_compares(ask: Ask, changed: Recurring, grpc_server: LiveServer) -> None:
    """The first line, what it rests on, the advice, and the summary of a run; the price of a model is of all trials."""
    (change,) = changed.details.changes
    since = f"since trial {change.since_trial}"
    number = changed.shown.num_trials - change.since_trial + 1 + 46
    shown = ask("jobs", "savings", changed.job_id)
    assert f"the default, 16, has not reached the target {since}." in " ".join(shown.split())
    changed.train(16, 30, times=6)
    changed.train(8, 15, times=40)
    shown = ask("jobs", "savings", changed.job_id)
    claim = row(ask("jobs", "show", changed.job_id), "savings")[1]
    assert claim.startswith("Saved at least ")
    assert f" in {number} deliveries {since}," in claim
    assert claim in shown
    assert claim in savings_claim(grpc_server.address, Credentials(), changed.job_id)
    assert row(shown, "changed")[1] == change.message
    assert row(shown, "since")[1].startswith(f"trial {change.since_trial}: {number} of {36 + number} deliveries, for ")
    figures = changed.figures
    assert row(shown, "deliveries")[1] == f"{36 + number} of {36 + number} trials"
    assert spent_per_model(figures, main_quantity(figures.savings, v1.Factors(), mark="")).startswith(
        f"{36 + number} deliveries for "
    )
    assert f"{figures.savings.cost.spent / 1000:.2f} kJ" == row(shown, "cost")[-1]


def test_a_table_says_from_which_trial_claims_compare(ask: Ask, changed: Recurring, grpc_server: LiveServer) -> None:
    """A pipe and a wide terminal have a column, the last one of a pipe; a narrow terminal says it below the table."""
    (change,) = changed.details.changes
    listing = ("jobs", "savings", "--prefix", changed.job_id)
    assert row(ask(*listing), changed.job_id)[-1] == str(change.since_trial)
    # Of the same trials as what was spent.
    deliveries = ask(*listing, "--columns", "job,deliveries,spent")
    compared = changed.figures.savings
    assert row(deliveries, changed.job_id)[1:] == [str(compared.num_deliveries), f"{compared.money.spent:.2f} EUR"]
    environment = {"WATTWISE_SERVER": grpc_server.address}
    note = f"Compared only since a change of behaviour: {changed.job_id} since trial {change.since_trial}."
    status, narrow = on_terminal(listing, 80, environment)
    assert status == 0
    assert note in " ".join(narrow.split())
    _, wide = on_terminal(listing, 250, environment)
    assert "since trial" in wide
    assert "Compared only" not in wide
