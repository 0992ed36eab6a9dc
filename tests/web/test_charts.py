"""What charts are drawn from: their marks, lines, axes, colors and symbols."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

import httpx
import pytest
from wattwise import v1
from wattwise.presentation.quantities import MINUS
from wattwise_web import charts
from wattwise_web.charts.vega import specification

from tests.jobs import Trainer
from tests.live_server import LiveServer
from tests.web.test_pages import job_page, rows_of, spec_of, text_of, values_of

POLICY = "knowledge_gradient"
SAVING = "resnet-nightly"
AMOUNTS = ("cost", "arms", "savings", "epochs", "power")
Spec = dict[str, Any]


def axis_of(spec: Spec) -> Spec:
    """The vertical axis that the layers share."""
    axes = [layer["encoding"]["y"] for layer in spec["layer"] if "scale" in layer["encoding"].get("y", {})]
    assert all(axis["scale"] == axes[0]["scale"] for axis in axes)
    found: Spec = axes[0]
    return found


def dates_of(spec: Spec) -> dict[int, int]:
    """The times of a chart's marks by trial, in seconds."""
    (computed,) = {
        each["calculate"] for layer in spec["layer"] for each in layer.get("transform", ()) if each.get("as") == "date"
    }
    (first,) = re.findall(r"\((\d+) \+ datum\.d\) \* 1000", computed)
    return {value["x"]: int(first) + value["d"] for value in values_of(spec)}


def test_marks_have_the_dates_of_their_trials(web: httpx.Client, site: LiveServer) -> None:
    """For the axis of dates, each trial's mark has the time of its end, and a saving that of its newest trial."""
    request = v1.ListTrialsRequest(job_id=SAVING, page_size=1000)
    ended = {trial.id.trial_number: trial.end_time.seconds
             for trial in site.admin.ListTrials(request).trials if trial.HasField("end_time")}  # fmt: skip
    page = job_page(web, SAVING)
    cost, saved = spec_of(page, "cost"), spec_of(page, "savings")
    assert dates_of(cost) == ended
    assert dates_of(saved) == {number: max(t for n, t in ended.items() if n <= number) for number in dates_of(saved)}
    assert all(spec["usermeta"]["date"]["scale"]["type"] == "utc" for spec in (cost, saved))
    assert 'name="axis" value="date"' in page.text


def lines_of(spec: Spec) -> dict[str, float]:
    """The horizontal lines of a chart, by their texts in the legend."""
    return {
        value["text"]: value["y"]
        for layer in spec["layer"]
        if "strokeDash" in layer["encoding"]
        for value in layer["data"]["values"]
    }


def test_the_default_has_a_line(web: httpx.Client, site: LiveServer) -> None:
    """The mean of the default's deliveries and the bound of the newest trial are lines, with their numbers beside."""
    statistics = site.admin.GetJobStatistics(v1.GetJobStatisticsRequest(job_id=SAVING)).statistics
    newest = site.admin.ListTrials(v1.ListTrialsRequest(job_id=SAVING, newest_first=True, page_size=1)).trials[0]
    default, bound = lines_of(spec_of(job_page(web, SAVING), "cost")).items()
    assert default[0].startswith("default 256, mean of its deliveries: ")
    assert default[1] == pytest.approx(statistics.savings.cost.default_mean, rel=1e-4)
    assert bound[0].startswith("bound of the newest trial: ")
    assert bound[1] == pytest.approx(newest.cost_bound, rel=1e-4)


@pytest.mark.parametrize("name", AMOUNTS)
def test_amounts_begin_at_zero_and_end_above_the_highest(web: httpx.Client, name: str) -> None:
    """An axis of amounts has zero, room above its highest mark, and one unit at each of its labels."""
    spec = spec_of(job_page(web, SAVING), name)
    axis = axis_of(spec)
    low, high = axis["scale"]["domain"]
    fields = {layer["encoding"]["y"].get("field") for layer in spec["layer"] if "y" in layer["encoding"]}
    shown = [value[field] for value in values_of(spec) for field in fields if isinstance(value.get(field), int | float)]
    assert low <= 0 < max(shown) < high
    assert not axis["scale"]["nice"]
    (label,) = re.findall(r"format\(datum\.value / ([\d.]+), ',~g'\)(.*)$", axis["axis"]["labelExpr"])
    assert (
        label
        == {
            "cost": ("1000000.0", ' + " MJ"'),
            "arms": ("1000000.0", ' + " MJ"'),
            "savings": ("1000000.0", ' + " MJ"'),
            "epochs": ("1.0", ""),
            "power": ("1.0", ' + " J"'),
        }[name]
    )


def test_a_batch_size_looks_the_same_in_all_charts(web: httpx.Client) -> None:
    """Its color and its symbol are those of all charts of the job, whichever batch sizes a chart shows."""
    page = job_page(web, SAVING)
    looks: dict[str, set[tuple[tuple[str, str], ...]]] = {"color": set(), "shape": set()}
    for name in ("cost", "arms", "curves", "epochs", "power"):
        spec, found = spec_of(page, name), dict[str, int]()
        for layer in spec["layer"]:
            for channel in looks.keys() & layer["encoding"].keys():
                scale = layer["encoding"][channel]["scale"]
                found[channel] = found.get(channel, 0) + 1
                looks[channel].add(tuple(zip(scale["domain"], scale["range"], strict=True)))
        assert found.keys() == looks.keys(), name
    assert [len(each) for each in looks.values()] == [1, 1]
    assert [[size for size, _ in look] for each in looks.values() for look in each] == [
        ["16", "32", "64", "128", "256"]
    ] * 2


def test_long_intervals_leave_room_for_others(grpc_server: LiveServer, own_web: httpx.Client) -> None:
    """Where hardly anything is known, the axis ends near the expected costs; arrows and the table say what goes on."""
    sizes = [2**power for power in range(3, 14)]
    trainer = Trainer(grpc_server.trainer, job_id="vague", job_id_prefix="vague", policy=POLICY, batch_sizes=sizes,
                      default_batch_size=256, max_epochs=100)  # fmt: skip
    trial = trainer.next()
    for epoch in (1, 10):
        trainer.report(trial, 100.0 * epoch, 0.1 * epoch, epoch, epoch)
    states = grpc_server.admin.GetJob(v1.GetJobRequest(job_id="vague")).details.batch_size_states
    means = [state.expected_cost for state in states]
    ends = [state.expected_cost + state.expected_cost_deviation for state in states]
    near = [mean for mean in means if mean <= 10 * min(means)]
    page = job_page(own_web, "vague")
    spec = spec_of(page, "arms")
    top = axis_of(spec)["scale"]["domain"][1]
    assert max(ends) > 3 * max(near)
    assert max(near) < top <= 2.4 * max(near)
    ranges, arrows = spec["datasets"].values()
    assert [row["x"] in {arrow["x"] for arrow in arrows} for row in ranges] == [end > 2 * max(near) for end in ends]
    assert all(row["h"] < top for row in ranges)
    assert "A grey arrow marks an interval that goes on above the chart" in text_of(page)
    assert [row["batch size"] for row in rows_of(page, "arms")] == list(map(str, sizes))


def test_a_lower_bound_far_below_is_cut_off() -> None:
    """Where the bound is far below zero, the axis leaves room for the estimate, and the caption says so."""
    saved, least = [-1e3, 2e3, 3e3], [-5e6, -9e5, -2e5]
    points = [
        v1.SavingsPoint(
            trial_number=number,
            num_deliveries=number + 7,
            num_compared_deliveries=number,
            saved_cost=each,
            saved_cost_at_least=bound,
        )
        for number, (each, bound) in enumerate(zip(saved, least, strict=True), 1)
    ]
    chart = charts.saved_so_far(v1.Job(), charts.History(v1.JobStatistics(), savings_points=points))
    assert chart is not None
    assert chart.drawing is not None
    assert chart.drawing.y.low == -1e3 - 2 * 4e3
    assert chart.drawing.y.high == pytest.approx(1.1 * 3e3)
    layers = specification(chart.drawing)["layer"]
    assert [layer["mark"]["clip"] for layer in layers if layer["mark"]["type"] in ("line", "area")] == [True] * 3
    assert "The solid line goes on below the chart" in chart.caption
    assert [row[1] for row in chart.rows] == ["3", "2", "1"]
    assert [row[3] for row in chart.rows] == [f"{MINUS}200 kJ", f"{MINUS}900 kJ", f"{MINUS}5.00 MJ"]


def test_curves_are_of_the_newest_trial_of_each_batch_size(grpc_server: LiveServer, own_web: httpx.Client) -> None:
    """Each batch size has the epochs of its newest trial that ended and counts; running ones are there as well."""
    trainer = Trainer(grpc_server.trainer, job_id="curved", job_id_prefix="curved", policy=POLICY)
    newest: dict[int, int] = {}
    for size in (8, 16, 8, 64, 16):
        trial = pinned(grpc_server, trainer, size)
        for epoch in (1, 2, 3):
            trainer.report(trial, 5.0 * epoch, 0.95 if epoch == 3 else 0.2 * epoch, epoch, float(epoch))
        newest[size] = trial.id.trial_number
    grpc_server.admin.SetTrialExcluded(v1.SetTrialExcludedRequest(trial=trial.id, excluded=True))
    newest[16] = 2
    running = pinned(grpc_server, trainer, 32)
    trainer.report(running, 5.0, 0.3)
    spec = spec_of(job_page(own_web, "curved"), "curves")
    values = values_of(spec)
    assert {value["n"]: value["s"] for value in values} == {n: str(s) for s, n in newest.items()} | {6: "32"}
    thick = max((layer for layer in spec["layer"]), key=lambda layer: layer["mark"].get("strokeWidth", 0))
    assert {value["n"] for value in spec["datasets"][thick["data"]["name"]]} == {6}
    assert [(value["x"], value["y"]) for value in values if value["n"] == newest[8]] == [(1, 0.2), (2, 0.4), (3, 0.95)]


def pinned(server: LiveServer, trainer: Trainer, size: int) -> v1.Trial:
    """A running trial of a batch size."""
    server.admin.SetPinnedBatchSize(v1.SetPinnedBatchSizeRequest(job_id=trainer.job_id, batch_size=size))
    return trainer.next()


def test_a_trial_that_is_off_the_scale_but_excluded_crushes_nothing(
    grpc_server: LiveServer, own_web: httpx.Client
) -> None:
    """An excluded trial of a wrong measurement is at the edge of the chart, whose axis is that of the others."""
    trainer = Trainer(grpc_server.trainer, job_id="off", job_id_prefix="off", policy=POLICY, beta_knob="off")
    for cost in (5.0, 7e9, 6.0):
        trial = trainer.run(cost)
        if cost > 1e9:
            grpc_server.admin.SetTrialExcluded(v1.SetTrialExcludedRequest(trial=trial.id, excluded=True))
    page = job_page(own_web, "off")
    assert axis_of(spec_of(page, "cost"))["scale"]["domain"][1] < 10
    assert [row["cost"] for row in rows_of(page, "cost")] == ["6.00 J", "7.00 GJ", "5.00 J"]


@pytest.mark.parametrize(
    ("metrics", "from_zero"),
    [((0.3, 0.5, 0.95), True), ((0.85, 0.89, 0.95), False), ((-1.0, 0.2, 0.95), True), ((0.9, 0.9, 0.9), False)],
)
def test_metrics_begin_at_zero_unless_they_are_close_together(
    grpc_server: LiveServer, own_web: httpx.Client, metrics: tuple[float, ...], *, from_zero: bool
) -> None:
    """The axis has room on both sides, and zero where this leaves enough of the chart to the metrics."""
    trainer = Trainer(
        grpc_server.trainer, job_id=f"metric-{metrics[0]}-{metrics[1]}", job_id_prefix="metric", policy=POLICY
    )
    trial = trainer.next()
    for epoch, value in enumerate(metrics, 1):
        trainer.report(trial, 5.0 * epoch, value, epoch, float(epoch))
    low, high = axis_of(spec_of(job_page(own_web, trainer.job_id), "curves"))["scale"]["domain"]
    assert (low <= 0) is from_zero
    assert low <= min(metrics) <= max(metrics) < high


def test_tooltips_and_tables_say_when_and_why(web: httpx.Client, site: LiveServer) -> None:
    """A mark and its row have the end, the epochs, the result and the reason of the trial."""
    request = v1.GetTrialRequest(trial=v1.TrialId(job_id=SAVING, trial_number=60))
    trial = site.admin.GetTrial(request).trial
    page = job_page(web, SAVING)
    (row,) = (row for row in rows_of(page, "cost") if row["trial"] == "60")
    assert (row["epochs"], row["result"]) == (str(trial.newest.epoch), "reached")
    assert row["why this batch size"] == trial.reason
    assert row["ended"] == trial.end_time.ToDatetime().strftime("%Y-%m-%d %H:%M:%S UTC")
    spec = spec_of(page, "cost")
    (mark,) = (value for value in values_of(spec) if value["x"] == 60)
    (layer,) = (layer for layer in spec["layer"] if layer["mark"].get("filled"))
    fields = {tip["title"]: tip["field"] for tip in layer["encoding"]["tooltip"]}
    assert set(fields) == {"trial", "batch size", "cost", "result", "ended", "epochs", "why this batch size"}
    computed = {each["as"]: each["calculate"] for each in layer["transform"] if "as" in each}

    def text(title: str) -> str:
        field = fields[title]
        words = json.loads(computed[field].partition("[datum.")[0]) if field in computed else None
        return str(words[mark.get(field, 0)] if words else mark[field])

    shown = {title: text(title) for title in ("result", "epochs", "why this batch size")}
    assert shown == {title: row[title] for title in shown}


def test_ids_are_no_expressions(web: httpx.Client) -> None:
    """A hostile id in what the browser computes is a text: an address with escaped characters, or a JSON string."""
    one, other = "test-'\"--><b>", "test-a/b?c=d&e#f%20"
    specs: Mapping[str, Spec] = {
        "cost": spec_of(job_page(web, one), "cost"),
        "per-delivery": spec_of(web.get("/compare", params={"a": one, "b": other}), "per-delivery"),
    }
    computed = {
        name: {
            each["calculate"]
            for layer in spec["layer"]
            for each in layer.get("transform", ())
            if each.get("as") == "href"
        }
        for name, spec in specs.items()
    }
    end = 'number=" + (datum.u || datum.x)'
    assert computed["cost"] == {f'"trial?job=test-%27%22--%3E%3Cb%3E&{end}'}
    assert computed["per-delivery"] == computed["cost"] | {f'"trial?job=test-a%2Fb%3Fc%3Dd%26e%23f%2520&{end}'}
    assert {value["s"] for value in values_of(specs["per-delivery"])} == {one, other}
