"""Sections and drawings by themselves, without a server."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any, get_args

import pytest
from wattwise import v1
from wattwise.presentation.facts import Fact
from wattwise_web import sections
from wattwise_web.app import templates
from wattwise_web.charts.marks import (
    Amounts,
    Chart,
    Dots,
    Drawing,
    Lines,
    Look,
    Mark,
    Names,
    Numbers,
    Point,
    Rule,
    Source,
    Tip,
)
from wattwise_web.charts.vega import specification
from wattwise_web.sections import Charts, Facts, Head, Page, Paragraph, Section, Trials


def rendered(*found: Section | None, standalone: bool = False) -> str:
    """The middle of a page of these sections."""
    page = Page("Title", v1.GetServerInfoResponse(), found)
    return (
        templates()
        .get_template("page.html")
        .render(
            page=page,
            layout="fragment.html",
            root="",
            now="now",
            link=lambda path, **_parameters: path,
            standalone=standalone,
        )
    )


def test_each_type_of_section_has_a_macro() -> None:
    """The template has a macro for each type of section, and none for any other type."""
    source = templates().get_template("sections.html").filename
    assert source is not None
    with open(source, encoding="utf-8") as file:  # noqa: PTH123 - it is the template's own name
        macros = re.findall(r"{% macro ([A-Z]\w*)", file.read())
    # Beside has no macro: the page lays out the sections in it.
    assert sorted(macros) == sorted(kind.__name__ for kind in get_args(Section) if kind is not sections.Beside)


def test_pages_render_the_sections_that_have_something_to_show() -> None:
    """Sections have the order of the page, and a section that is None leaves nothing."""
    html = rendered(Head("One"), None, Paragraph("Two", "note"), Facts("Three", [Fact("name", "`code` <b>")]))
    assert re.findall("One|Two|Three", html) == ["One", "Two", "Three"]
    assert "None" not in html
    assert "<code>code</code> &lt;b&gt;" in html


def test_sections_beside_each_other_are_in_one_element() -> None:
    """The element has the style of the pair, and its sections are those that have something to show."""
    html = rendered(sections.Beside("columns", [None, Facts("Configuration", [])]), Paragraph("after", ""))
    (inside,) = re.findall(r'<div class="columns">(.*?)</div>', html, re.DOTALL)
    assert "Configuration" in inside
    assert "after" not in inside


def test_a_page_in_a_file_leads_nowhere() -> None:
    """A table of trials in an exported file shows the numbers of its trials without links."""
    trial = v1.Trial(id=v1.TrialId(job_id="job", trial_number=7), labels={"log_url": "https://logs.example/7"})
    table = Trials("Trials", [sections.trial_row(None, trial)], job_id="job", total=1)
    assert rendered(table).count("<a ") == 5
    assert "<a " not in rendered(table, standalone=True)


def test_running_trials_beyond_the_first_are_counted() -> None:
    """The next launch shows six running trials and the number of the others, those of later pages among them."""
    running = v1.ListTrialsResponse(
        trials=[v1.Trial(id=v1.TrialId(trial_number=n)) for n in range(1, 9)], total_size=70
    )
    choices = [v1.PreviewedChoice(batch_size=size) for size in (8, 16, 32, 64)]
    shown = sections.next_launch(v1.Job(spec=v1.JobSpec(job_id="job")), choices, running)
    assert [row.number for row in shown.running] == [1, 2, 3, 4, 5, 6]
    assert shown.more_running == 64
    assert [choice.batch_size for choice in shown.choices] == [8, 16, 32]


def test_only_pages_with_charts_need_the_scripts_that_draw() -> None:
    """Charts without anything to show are no section."""
    chart = Chart("name", "title", (), ())
    assert sections.charts_of(None, None) is None
    assert sections.charts_of(None, chart) == Charts([chart])
    for found, has_charts in ((None, False), (Charts([chart]), True)):
        assert Page("title", v1.GetServerInfoResponse(), [found]).has_charts is has_charts


@pytest.mark.parametrize(
    ("verdict", "text"),
    [
        (v1.SAVINGS_VERDICT_SAVING, ("44%", "saving", "1.00 kJ")),
        (v1.SAVINGS_VERDICT_LOSS, ("+7%", "loss", "costs more")),
        (v1.SAVINGS_VERDICT_UNCERTAIN, ("not certain yet", "none", "")),
        (v1.SAVINGS_VERDICT_NO_BASELINE, ("no comparison yet", "none", "needs 2 runs of the default")),
    ],
)
def test_a_row_says_what_a_job_saved(verdict: v1.SavingsVerdict.ValueType, text: tuple[str, str, str]) -> None:
    """The row of a job has the share that it saved or lost, or why there is none."""
    cost = v1.SavingsEstimate(verdict=verdict, at_least=1000.0, at_least_share=0.44, lost_share=0.07)
    savings = v1.Savings(cost=cost, min_baseline_trials=3, num_baseline_trials=1)
    listing = v1.JobListing(summary=v1.JobSummary(savings=savings))
    assert sections.job_row(listing, v1.Factors()).saved == text


def drawing(*marks: Mark, low: float = 0.0, high: float = 10.0) -> Drawing:
    """A drawing with an axis of numbers."""
    return Drawing(Numbers("x"), Amounts("y", low, high), marks)


def layers(*marks: Mark) -> list[dict[str, Any]]:
    """The layers in which marks are drawn."""
    found: list[dict[str, Any]] = specification(drawing(*marks))["layer"]
    return found


def test_marks_with_the_same_points_send_them_once() -> None:
    """A line and the dots on it have one dataset."""
    points = [Point(1, 2.0), Point(2, 3.0)]
    spec = specification(drawing(Lines(points, color="#000"), Dots(points), Dots([Point(3, 4.0)])))
    assert [[row["x"] for row in rows] for rows in spec["datasets"].values()] == [[1, 2], [3]]
    names = [layer["data"]["name"] for layer in spec["layer"]]
    assert names[0] == names[1] != names[2]


def test_each_look_has_its_layers() -> None:
    """A failed point has a cross in it, and an excluded point is grey with a line through it."""
    looks = [Point(at, 1.0, "a", look) for at, look in enumerate((Look.FILLED, Look.FAILED, Look.EXCLUDED))]
    found = layers(Dots(looks))
    drawn = [(layer["mark"]["type"], layer["mark"].get("shape"), layer["mark"].get("filled")) for layer in found]
    assert drawn == [
        ("point", None, True),
        ("point", None, False),
        ("text", None, None),
        ("point", None, False),
        ("point", "stroke", None),
    ]
    assert ["color" in layer["encoding"] for layer in found] == [True, True, True, False, False]
    filters = [layer["transform"][0]["filter"] for layer in found]
    assert [int(text[-1]) for text in filters] == [Look.FILLED, *[Look.FAILED] * 2, *[Look.EXCLUDED] * 2]


def test_ranges_of_excluded_points_are_not_drawn() -> None:
    """The ranges are below the points, and those of excluded points are left out."""
    rule, *_ = layers(Dots([Point(1, 2.0, low=1.0, high=3.0), Point(2, 2.0, "a", Look.EXCLUDED, 1.0, 9.0)]))
    assert (rule["mark"]["type"], rule["encoding"]["y"]["field"], rule["encoding"]["y2"]["field"]) == ("rule", "l", "h")
    assert rule["transform"] == [{"filter": f"datum.k != {Look.EXCLUDED:d}"}]


def test_points_above_the_chart_are_at_its_edge() -> None:
    """Such a point is drawn at the upper edge, and its tooltip has its own value."""
    tips = [Tip("cost", Source.COST)]
    (inside,) = layers(Dots([Point(1, 9.0)], tips))
    (outside,) = layers(Dots([Point(1, 900.0)], tips))
    assert inside["encoding"]["y"]["field"] == "y"
    assert outside["encoding"]["y"]["field"] == "shown"
    assert {"calculate": "min(datum.y, 9.6)", "as": "shown"} in outside["transform"]
    assert "format(datum.y" in next(each["calculate"] for each in outside["transform"] if each.get("as") == "t0")


def test_texts_that_repeat_are_sent_once() -> None:
    """The tooltips of many points with few texts look them up in a list; other texts are in the points."""
    points = [Point(at, 1.0, texts=("reached" if at else "missed", f"text {at}")) for at in range(6)]
    spec = specification(drawing(Dots(points, [Tip("result"), Tip("own")])))
    (rows,) = spec["datasets"].values()
    assert [row.get("t0") for row in rows] == [None, 1, 1, 1, 1, 1]
    assert [row["t1"] for row in rows] == [f"text {at}" for at in range(6)]
    computed = {each["as"]: each["calculate"] for each in spec["layer"][0]["transform"] if "as" in each}
    assert computed == {"t0": '["missed", "reached"][datum.t0 || 0]'}


def test_charts_by_date_need_the_date_of_each_point() -> None:
    """A drawing without points, with names, or with a point without a date has no axis of dates."""
    dated = drawing(Dots([Point(1, 1.0, date=100)]), Rule("x", 1.0))
    assert specification(dated)["usermeta"]["date"]["scale"]["type"] == "utc"
    for other in (
        drawing(Rule("x", 1.0)),
        drawing(Dots([Point(1, 1.0, date=100), Point(2, 1.0)])),
        replace(dated, x=Names("x", ["1"]), marks=[Dots([Point("1", 1.0)])]),
    ):
        assert "usermeta" not in specification(other)


def test_rules_of_the_legend_have_their_dashes() -> None:
    """The legend has each named line with its dash; other lines are not in it."""
    found = layers(
        Rule("y", 1.0, text="mean", in_legend=True), Rule("y", 2.0, (4, 4), "bound", in_legend=True), Rule("y", 0.0)
    )
    scales = [layer["encoding"].get("strokeDash", {}).get("scale") for layer in found]
    assert scales == [{"domain": ["mean", "bound"], "range": [(1, 0), (4, 4)]}] * 2 + [None]
