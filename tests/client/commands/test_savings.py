"""`wattwise jobs savings` and what `wattwise jobs show` says of savings, against the real server."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from wattwise import v1
from wattwise.driver.command import savings_claim
from wattwise.rpc.calls import new_id
from wattwise.rpc.credentials import Credentials

from tests.client.commands.conftest import Ask, records, row
from tests.jobs import Trainer, monitor_of
from tests.live_server import LiveServer
from tests.terminal import on_terminal

FACTORS = (
    *("--electricity-price", "0.36", "--gpu-hour-price", "1.8", "--currency", "EUR"),
    *("--carbon-intensity", "360", "--pue", "1.5", "--factors-source", "tariff of 2026"),
)


def runs(server: LiveServer, batch_size: int, costs: Sequence[float | None], trainer: Trainer) -> Trainer:
    """Runs trials of this batch size that reach the target at these costs."""
    request = v1.SetPinnedBatchSizeRequest(job_id=trainer.job_id, batch_size=batch_size)
    server.admin.SetPinnedBatchSize(request)
    for cost in costs:
        trainer.run(cost)
    return trainer


@pytest.fixture
def saving(grpc_server: LiveServer, stub: v1.BatchSizeOptimizerStub) -> Trainer:
    """A job that saves."""
    return runs(grpc_server, 8, [10.0] * 40, runs(grpc_server, 16, [100.0] * 6, Trainer(stub)))


@pytest.fixture
def losing(grpc_server: LiveServer, stub: v1.BatchSizeOptimizerStub) -> Trainer:
    """A job that loses."""
    return runs(grpc_server, 8, [100.0] * 10, runs(grpc_server, 16, [10.0] * 6, Trainer(stub)))


def test_headline_is_the_lower_bound(ask: Ask, saving: Trainer) -> None:
    """The first lines have what a launch costs and the lower bound; the larger estimate is called one."""
    shown = ask("jobs", "savings", saving.job_id)
    document = json.loads(ask("jobs", "savings", saving.job_id, "--json"))
    cost = document["statistics"]["savings"]["cost"]
    assert shown.startswith("A model costs 10.0 J now, 100 J with the default, 16: 90% less. Saved at least 2.58 kJ")
    assert (round(cost["at_least"], -1), cost["spent"]) == (2580, 1000)
    assert cost["saved"] > cost["at_least"]
    assert row(shown, "cost") == ["cost", "10.0 J", "100 J", "2.58 kJ", "3.20 kJ", "1.00 kJ"]
    assert row(shown, "compared with")[1].startswith("6 deliveries of the default batch size 16, ")
    assert row(shown, "break-even")[1].startswith("at trial 8, ")
    assert row(shown, "16", "mean cost") == ["16", "6", "6", "0", "0", "100 J", "100 J", "1.0 s"]


def test_loss_is_as_loud(ask: Ask, losing: Trainer) -> None:
    """A loss is the first line too: what was spent beyond the mean of the default, with the server's advice."""
    shown = ask("jobs", "savings", losing.job_id)
    lost = "Lost 900 J in 16 deliveries, 562% more than the default would have cost."
    assert lost in " ".join(shown.split())
    assert row(shown, "advice")[1].startswith("the trials have cost more than they have saved so far")
    assert row(ask("jobs", "show", losing.job_id), "savings")[1] == lost
    listed = row(ask("jobs", "savings", "--prefix", losing.job_id), losing.job_id)
    assert listed[1:5] == ["LOSS", "100 J", "10.0 J", "900 J"]


def test_no_claim(ask: Ask, stub: v1.BatchSizeOptimizerStub) -> None:
    """Without a delivery, or without one of the default, no number is claimed, and the first line says why."""
    trainer = Trainer(stub)
    shown = ask("jobs", "savings", trainer.job_id)
    assert shown.startswith("No launch yet: the first one begins the search. Nothing was saved yet. ")
    assert row(shown, "cost") == ["cost", "no comparison yet", "0.00 J"]
    trainer.run(10.0)
    assert row(ask("jobs", "savings", trainer.job_id), "cost") == [
        "cost",
        "10.0 J",
        "10.0 J",
        "exploring",
        "10.0 J",
    ]


def test_estimates_are_marked(ask: Ask, stub: v1.BatchSizeOptimizerStub) -> None:
    """Costs of a monitor that estimates are marked in the savings."""
    trainer = Trainer(stub)
    for _ in range(3):
        trainer.run(10.0, monitor=monitor_of("estimate"))
    shown = ask("jobs", "savings", trainer.job_id)
    assert row(shown, "monitor") == ["monitor", "estimate"]
    assert row(shown, "16", "mean cost")[5] == "~10.0 J"


def test_list_and_totals(ask: Ask, saving: Trainer, losing: Trainer) -> None:
    """All jobs have a row, and the totals below include losses; --no-headers prints rows only."""
    shown = ask("jobs", "savings")
    document = json.loads(ask("jobs", "savings", "--json"))
    assert row(shown, saving.job_id)[1:7] == ["saves", "10.0 J", "100 J", "2.58 kJ", "3.20 kJ", "1.00 kJ"]
    assert {row["job"]["spec"]["job_id"] for row in document["jobs"]} >= {saving.job_id, losing.job_id}
    assert document["totals"]["num_jobs"] == len(document["jobs"])
    rows = ask("jobs", "savings", "--no-headers").splitlines()
    assert len(rows) == len(document["jobs"])
    assert ask("jobs", "savings", "--limit", "1", "--no-headers", "--columns", "job").count("\n") == 1


def test_totals_say_a_loss_by_the_means(ask: Ask, grpc_server: LiveServer, stub: v1.BatchSizeOptimizerStub) -> None:
    """Jobs whose bounds sum to no saving have lost by the rule of a single job; else nothing is certain."""
    for job_id, costs in (("lost-a", [100.0] * 10), ("lost-b", [10.0] * 4)):
        trainer = Trainer(stub, job_id_prefix="lost", job_id=job_id)
        runs(grpc_server, 8, costs, runs(grpc_server, 16, [10.0] * 6, trainer))
    shown = ask("jobs", "savings", "--prefix", "lost-")
    assert "total: 900 J more than with the default batch sizes, in 2 of 2 jobs" in shown
    # All trials cost the same.
    assert "total: it is not certain yet whether 1 job saved anything\n" in ask("jobs", "savings", "--prefix", "lost-b")


def test_losses_of_the_printed_rows_are_counted(
    ask: Ask, grpc_server: LiveServer, stub: v1.BatchSizeOptimizerStub
) -> None:
    """The jobs that lost are counted among the printed rows, not among those that a limit leaves out."""
    for name in "abc":
        trainer = Trainer(stub, job_id_prefix="many", job_id=f"many-{name}")
        runs(grpc_server, 8, [100.0] * 10, runs(grpc_server, 16, [10.0] * 6, trainer))
    listing = ("jobs", "savings", "--prefix", "many-")
    assert row(ask(*listing), "losses")[1] == "3 jobs of those above"
    assert row(ask(*listing, "--limit", "1"), "losses")[1] == "1 job of those above"
    assert row(ask(*listing, "--limit", "2", "--sort", "job"), "losses")[1] == "2 jobs of those above"


def test_spending_of_running_trials_is_no_loss(ask: Ask, losing: Trainer) -> None:
    """A loss is what ended trials spent beyond the default; running trials are counted, and said to run."""
    trial = losing.next()
    losing.report(trial, 5000.0, metric=0.1)
    shown = ask("jobs", "savings", losing.job_id)
    assert "Lost 900 J in 16 deliveries, 562% more " in " ".join(shown.split())
    assert row(shown, "cost")[-1] == "6.06 kJ"
    assert row(shown, "deliveries")[1] == "16 of 17 trials, 1 still running"
    assert row(shown, "loss")[1].startswith("1.06 kJ of ended trials - 16 x 10.0 J = 900 J; ")


def test_a_loss_beside_a_default_that_misses_adds_up(
    ask: Ask, grpc_server: LiveServer, stub: v1.BatchSizeOptimizerStub
) -> None:
    """What the default misses is part of what a model takes with it, in every figure."""
    trainer = runs(grpc_server, 16, [100.0] * 10, Trainer(stub))
    for _ in range(5):
        trainer.run(100.0, converges=False)
    runs(grpc_server, 8, [400.0] * 10, trainer)
    shown = ask("jobs", "savings", trainer.job_id)
    assert row(shown, "loss")[1] == "5.50 kJ - 20 x 150 J = 2.50 kJ; 150 J is what a model takes with the default"
    assert "Lost 2.50 kJ in 20 deliveries, 83% more " in " ".join(shown.split())


@pytest.fixture(scope="module")
def priced(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    """A server whose operator has set prices and a carbon intensity."""
    with LiveServer(tmp_path_factory.mktemp("priced")) as server:
        server.start(*FACTORS)
        yield server


def test_money_and_carbon(priced: LiveServer, ask: Ask) -> None:
    """With the operator's factors money and CO2 are shown apart, also for a model, with the source of the factors."""
    trainer = runs(priced, 8, [10.0] * 40, runs(priced, 16, [100.0] * 6, Trainer(priced.trainer, job_id="test-paid")))
    shown = ask("jobs", "savings", trainer.job_id, "--server", priced.address)
    totals = ask("jobs", "savings", "--prefix", trainer.job_id, "--server", priced.address)
    assert row(shown, "CO2") == ["CO2", "0.00150 g", "0.0150 g", "0.388 g", "0.481 g", "0.150 g"]
    assert row(shown, "money")[-1] == "0.0232 EUR"
    assert shown.startswith("A model costs 0.000501 EUR now, 0.000515 EUR with the default, 16: 3% less. ")
    amounts = [line.split()[0] for line in shown.splitlines() if line.startswith(("cost ", "money ", "energy "))]
    assert amounts[0] == "money"
    assert row(shown, "8", "mean money")[-2:] == ["0.000501 EUR", "0.00150 g"]
    assert row(shown, "factors")[1].endswith("PUE 1.5; source: tariff of 2026")
    assert row(totals, "money")[-1] == "0.0232 EUR"
    assert row(totals, trainer.job_id)[1:4] == ["not certain yet", "0.000501 EUR", "0.000515 EUR"]
    listed = ask("jobs", "list", "--columns", "job,a-model-now", "--server", priced.address)
    assert row(listed, trainer.job_id)[1] == "0.000501 EUR"


def test_a_model_has_its_price(priced: LiveServer, ask: Ask) -> None:
    """A delivery costs its energy times price and PUE, and its GPU hours; a model of the job costs what failed, too."""
    trainer = Trainer(priced.trainer)
    # 16 delivers as an exploration, at 4 MJ, and twice as requested, at 10 MJ: 8 MJ and 1 s on average.
    runs(priced, 16, [10e6, 10e6], after_default(trainer, 4e6))
    trainer.run(6e6, converges=False)
    each, hour = 1.5 * 0.36 / 3.6e6, 1.8 / 3600
    assert (each * 8e6 + hour, (each * 30e6 + 4 * hour) / 3) == pytest.approx((1.2005, 1.50066667))
    savings = ask("jobs", "savings", trainer.job_id, "--server", priced.address)
    shown = ask("jobs", "show", trainer.job_id, "--wide", "--server", priced.address)
    assert row(savings, "16", "mean money")[-2] == "1.20 EUR"
    assert row(shown, "16", "mean money of a delivery")[-1] == "1.20 EUR"
    for size in ("8", "32", "64"):
        assert row(shown, size, "mean money of a delivery")[1:6] == ["available", "0", "0", "0", "0"]
        assert "EUR" not in row(shown, size, "mean money of a delivery")[-1]
    for text in (savings, shown):
        paid = "3 deliveries for 4.50 EUR, 1.50 EUR each, failed and running trials included"
        assert row(text, "spent", "deliveries for")[1] == paid
        assert "3 deliveries for 4.50 EUR, 1.50 EUR each" in row(text, "by month")[1]


def after_default(trainer: Trainer, cost: float) -> Trainer:
    """The trainer after the first trial of the search, which is one of the default batch size."""
    assert trainer.run(cost).batch_size == trainer.spec.default_batch_size
    return trainer


def test_without_deliveries_nothing_has_a_price(priced: LiveServer, ask: Ask) -> None:
    """A job without a delivery has no price of a model, whatever was spent, and blanks for its batch sizes."""
    trainer = Trainer(priced.trainer)
    trainer.run(6e6, converges=False)
    savings = ask("jobs", "savings", trainer.job_id, "--server", priced.address)
    shown = ask("jobs", "show", trainer.job_id, "--wide", "--server", priced.address)
    assert row(savings, "money") == ["money", "no comparison yet", "0.901 EUR"]
    assert row(savings, "16", "mean money") == ["16", "1", "0", "1", "0"]
    assert "EUR" not in row(shown, "16", "mean money of a delivery")[-1]
    assert "0.901 EUR for no delivery" in savings
    assert "0.901 EUR for no delivery" in shown


def test_unmeasured_energy_has_no_claim(priced: LiveServer, ask: Ask) -> None:
    """Without energy there is no amount of it, nor of money and CO2 that follow from it: of one job or of many."""
    trainer = Trainer(priced.trainer, job_id_prefix="unmeasured", job_id="unmeasured", eta_knob=0.0)
    runs(priced, 8, [None] * 2, runs(priced, 16, [None] * 6, trainer))
    for words in ((trainer.job_id,), ("--prefix", trainer.job_id)):
        shown = ask("jobs", "savings", *words, "--server", priced.address)
        assert row(shown, "energy") == ["energy", "not measured", "not measured"]
        assert not {"no comparison yet", "not measured"} & {*row(shown, "time")}
        assert not any(line.startswith(("money", "CO2")) for line in shown.splitlines())
        assert "EUR each" not in shown
    assert "EUR" not in row(ask("jobs", "savings", trainer.job_id, "--server", priced.address), "16", "mean money")[-1]


def test_hours_have_money_without_energy(tmp_path: Path, ask: Ask) -> None:
    """Where hours alone have a price, money is claimed whether energy was measured or not."""
    with LiveServer(tmp_path) as server:
        server.start("--gpu-hour-price", "3600", "--currency", "EUR")
        trainer = runs(server, 16, [None] * 3, Trainer(server.trainer, eta_knob=0.0))
        for words in ((trainer.job_id,), ("--prefix", trainer.job_id)):
            shown = ask("jobs", "savings", *words, "--server", server.address)
            assert row(shown, "money")[-1] == "3.00 EUR"
            assert not {"no comparison yet", "not measured"} & {*row(shown, "money")}


def test_energy_of_others_is_no_claim(priced: LiveServer, ask: Ask) -> None:
    """Energy that only jobs without a claim have measured is spent in the totals, and none of it is claimed."""
    runs(priced, 16, [None] * 2, Trainer(priced.trainer, job_id_prefix="mixed", job_id="mixed-time", eta_knob=0.0))
    Trainer(priced.trainer, job_id_prefix="mixed", job_id="mixed-energy").run(50.0, converges=False)
    shown = ask("jobs", "savings", "--prefix", "mixed", "--server", priced.address)
    assert row(shown, "energy") == ["energy", "no comparison yet", "50.0 J"]
    assert row(shown, "money")[1] == "no comparison yet"


@pytest.mark.parametrize("prices", [(), ("--electricity-price", "0", "--gpu-hour-price", "0", "--currency", "EUR")])
def test_without_prices_no_model_has_one(tmp_path: Path, ask: Ask, prices: Sequence[str]) -> None:
    """Without prices, or with prices of 0, there is neither a column of money nor a price of a model."""
    with LiveServer(tmp_path) as server:
        server.start(*prices)
        trainer = runs(server, 16, [100.0] * 2, Trainer(server.trainer))
        savings = ask("jobs", "savings", trainer.job_id, "--server", server.address)
        shown = ask("jobs", "show", trainer.job_id, "--server", server.address)
    assert "mean money" not in savings + shown
    assert "EUR each" not in savings + shown


def test_unmeasured_energy_has_no_price(tmp_path: Path, ask: Ask) -> None:
    """Where energy alone has a price and none was measured, the price of a model is blank, not 0."""
    with LiveServer(tmp_path) as server:
        server.start("--electricity-price", "0.36", "--currency", "EUR")
        trainer = runs(server, 16, [None] * 2, Trainer(server.trainer, eta_knob=0.0))
        savings = ask("jobs", "savings", trainer.job_id, "--server", server.address)
        shown = ask("jobs", "show", trainer.job_id, "--wide", "--server", server.address)
    assert row(savings, "16", "mean money")[-1] == "1.0 s"
    assert "EUR" not in row(shown, "16", "mean money of a delivery")[-1]
    assert "EUR each" not in savings + shown


def test_the_money_of_batch_sizes_is_a_detail(priced: LiveServer) -> None:
    """The mean money of a delivery is in the wide table alone, so that the usual one fits 80 columns."""
    trainer = runs(priced, 16, [10e6, 10e6], Trainer(priced.trainer))
    words = ("jobs", "show", trainer.job_id, "--server", priced.address)
    for options, there in (((), False), (("--wide",), True)):
        status, text = on_terminal([*words, *options], 80)
        assert status == 0
        (table,) = (part for part in text.split("\n\n") if "missed" in part and "running" in part)
        assert ("money" in table) == there
        assert there or max(map(len, table.splitlines())) <= 80


def test_savings_fit_a_terminal(saving: Trainer) -> None:
    """On a terminal of 80 columns no line is wider."""
    for words in (("savings", saving.job_id), ("savings",), ("events",), ("events", saving.job_id)):
        status, text = on_terminal(("jobs", *words))
        assert status == 0
        assert max(map(len, text.splitlines())) <= 80


def test_next_launch_is_previewed(ask: Ask, stub: v1.BatchSizeOptimizerStub) -> None:
    """What the next launch may get is shown with shares that add up to one."""
    trainer = Trainer(stub, num_pruning_rounds=0, num_explorations=1, seed=None)
    text = row(ask("jobs", "show", trainer.job_id), "next launch")[1]
    shares = [int(part.split("%")[0]) for part in text.split("(")[1:]]
    assert len(shares) == 3
    assert 60 <= sum(shares) <= 100


def test_page_of_a_job(
    ask: Ask, refused: Ask, stub: v1.BatchSizeOptimizerStub, monkeypatch: pytest.MonkeyPatch
) -> None:
    """--web prints the URL of the job's page, with the id quoted; the site comes from the option or the variable."""
    trainer = Trainer(stub, job_id="test-a/b?c&d")
    page = "https://site.example/w/job?id=test-a%2Fb%3Fc%26d"
    assert ask("jobs", "show", trainer.job_id, "--web") == "http://127.0.0.1:8080/job?id=test-a%2Fb%3Fc%26d\n"
    assert "'ftp://x'" in refused("jobs", "show", trainer.job_id, "--web", "ftp://x", status=2)
    assert "--json" in refused("jobs", "show", trainer.job_id, "--json", "--web", "https://x", status=2)
    assert ask("jobs", "show", trainer.job_id, "--web", "https://site.example/w/") == f"{page}\n"
    monkeypatch.setenv("WATTWISE_WEB_URL", "https://site.example/w")
    assert ask("jobs", "show", trainer.job_id, "--web") == f"{page}\n"
    assert row(ask("jobs", "show", trainer.job_id), "page") == ["page", page]


@pytest.mark.parametrize("wrong", ["ftp://x", "https://", "https://[x", "wattwise.example"])
def test_wrong_page_is_no_fault_of_others(
    ask: Ask, refused: Ask, stub: v1.BatchSizeOptimizerStub, monkeypatch: pytest.MonkeyPatch, wrong: str
) -> None:
    """A variable that is not the URL of a site breaks --web alone: a job is shown, without the line of its page."""
    trainer = Trainer(stub)
    monkeypatch.setenv("WATTWISE_WEB_URL", wrong)
    assert repr(wrong) in refused("jobs", "show", trainer.job_id, "--web", status=2)
    assert not any(line.startswith("page") for line in ask("jobs", "show", trainer.job_id).splitlines())
    assert json.loads(ask("jobs", "show", trainer.job_id, "--json"))["job"]["spec"]["job_id"] == trainer.job_id


@pytest.mark.parametrize(
    "options",
    [("--sort", "job"), ("--reverse",), ("--limit", "3"), ("--columns", "job"), ("--wide",), ("--no-headers",)],
)
def test_options_of_tables_are_for_all_jobs(refused: Ask, options: Sequence[str]) -> None:
    """The savings of one job are no table of jobs: the options of such a table are refused, not ignored."""
    assert options[0] in refused("jobs", "savings", "some-job", *options, status=2)


def test_claim_of_a_run(grpc_server: LiveServer, saving: Trainer) -> None:
    """A run ends with the claim of `jobs savings`; a server that is away is no error."""
    claims = [savings_claim(address, Credentials(), saving.job_id) for address in (grpc_server.address, "127.0.0.1:1")]
    assert "Saved at least 2.58 kJ in 46 deliveries, " in claims[0]
    assert claims[1].startswith("unknown: ")
    assert "127.0.0.1:1" in claims[1]


def test_trials_by_end_reason(ask: Ask, stub: v1.BatchSizeOptimizerStub) -> None:
    """--end-reason chooses trials, and --reverse with --limit the newest ones."""
    trainer = Trainer(stub)
    trainer.run(10.0)
    trainer.end(trainer.next(), v1.END_REASON_ERROR)
    trainer.run(10.0)
    words = ("jobs", "trials", trainer.job_id, "--no-headers", "--columns", "trial")
    assert ask(*words, "--end-reason", "error").split() == ["2"]
    assert ask(*words, "--reverse", "--limit", "2").split() == ["3", "2"]


def test_trials_by_label(ask: Ask, refused: Ask, stub: v1.BatchSizeOptimizerStub) -> None:
    """--label chooses trials, several of them those with all labels."""
    trainer = Trainer(stub)
    for host, commit in (("a", "5f0"), ("b", "5f0"), ("a", "9=b")):
        launch = v1.GetNextBatchSizeRequest(
            job_id=trainer.job_id, launch_id=new_id(), labels={"host": host, "commit": commit}
        )
        trainer.report(stub.GetNextBatchSize(launch).trial, 10.0)
    words = ("jobs", "trials", trainer.job_id, "--no-headers", "--columns", "trial")
    assert ask(*words, "--label", "host=a").split() == ["1", "3"]
    assert ask(*words, "--label", "host=a", "--label", "commit=9=b").split() == ["3"]
    assert ask(*words, "--label", "host=c") == ""
    for bad in ("host", "=a"):
        assert "KEY=VALUE" in refused(*words, "--label", bad, status=2)


def test_events(ask: Ask, refused: Ask, saving: Trainer) -> None:
    """Events come newest first, by job and kind; without a job those of all have its id."""
    events = records(ask("jobs", "events", saving.job_id, "--format", "tsv"))
    assert (events[-1]["job"], events[-1]["kind"]) == (saving.job_id, "job registered")
    assert events[-1]["message"] in ask("jobs", "events", saving.job_id).splitlines()[-1]
    pinned = json.loads(ask("jobs", "events", saving.job_id, "--kind", "batch-size-pinned", "--json"))
    assert [event["batch_size"] for event in pinned] == [8, 16]
    assert saving.job_id in ask("jobs", "events", "--prefix", saving.job_id, "--limit", "1")
    assert "trial-failed" in refused("jobs", "events", "--kind", "crash", status=2)


def test_no_events(ask: Ask, stub: v1.BatchSizeOptimizerStub) -> None:
    """On a terminal and in a pipe it is said that there are no events, unless only rows are wanted."""
    none = ("jobs", "events", Trainer(stub).job_id, "--kind", "trial-failed")
    for options, shown in (((), "no events\n"), (("--no-headers",), "")):
        assert ask(*none, *options) == shown
        assert on_terminal([*none, *options]) == (0, shown)


def test_events_of_no_job(ask: Ask, refused: Ask, stub: v1.BatchSizeOptimizerStub) -> None:
    """An unknown job is refused with the nearest id, in every format; of a deleted one the events are kept."""
    job_id = Trainer(stub, job_id="eventful-nightly", job_id_prefix="eventful").job_id
    for options in ((), ("--json",), ("--format", "tsv"), ("--kind", "trial-failed")):
        error = refused("jobs", "events", "eventful-nihgtly", *options, status=1)
        assert "did you mean 'eventful-nightly'?" in error
    ask("jobs", "delete", job_id, "--yes")
    assert "deleted" in ask("jobs", "events", job_id)
    assert ask("jobs", "events", job_id, "--kind", "trial-failed") == "no events\n"


def test_no_job_is_not_all_jobs(refused: Ask) -> None:
    """An empty job id, as of an unset variable in a script, is refused."""
    for action in ("savings", "events", "watch", "export"):
        assert "empty" in refused("jobs", action, "", status=2)
        assert "--prefix" in refused("jobs", action, "x", "--prefix", "y", status=2)
