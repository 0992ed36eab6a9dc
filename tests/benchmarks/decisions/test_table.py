"""The table of decisions: its rows, its figures, its limits and its files."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from wattwise_replay.errors import ReplayError
from wattwise_replay.workload import Workload
from wattwise_server.policy.gts import Gts
from wattwise_server.policy.pruning_gts import PruningGts

from benchmarks.decisions import __main__ as command
from benchmarks.decisions.cases import NOWHERE, Case, Folders
from benchmarks.decisions.figures import (
    ALARMS,
    ALL,
    FIRST_WAVE,
    LAUNCHES,
    LOSING,
    STUCK,
    TO_PAPERS,
    UNDELIVERED,
    WORST,
    Scores,
)
from benchmarks.decisions.report import PAPERS, Line, lines
from benchmarks.decisions.rows import Row, playable, rows, seeds_of
from benchmarks.decisions.scores import Played, Reference, Score

VARIANTS = {"sampling alone": Gts, "pruning": PruningGts}
_CASES = [Case("1"), Case("2")]


def _cells(text: str, title: str, contender: str) -> list[str]:
    """The cells of the line of a contender in the row with this title."""
    found = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("|")]
    first = next(place for place, cells in enumerate(found) if cells[0] == title)
    return next(cells for cells in found[first:] if cells[1] == contender)


def _score(*ratios: float, settled: int = 8, **changed: Any) -> Score:
    """Forty recurrences, which cost so many times the best in each seed; batch size 16 costs twice as much as 8."""
    best = np.ones((len(ratios), 40))
    usual = {
        "costs": np.outer(ratios, np.ones(40)),
        "launches": np.ones(best.shape, int),
        "delivered": np.full(best.shape, fill_value=True),
        "fallbacks": np.zeros(len(ratios), int),
        "alarms": np.zeros(len(ratios), int),
        "settled": np.full(len(ratios), settled),
    }
    return Score(Played(**{**usual, **changed}), Reference(best, 2 * best, {8: 1.0, 16: 2.0}))


def _line(row: Row, *scores: Score, papers: Sequence[Score] = ()) -> Line:
    return Line(
        row, "mine", dict(zip(row.cases, scores, strict=True)), dict(zip(row.cases, papers, strict=bool(papers)))
    )


def test_every_row_is_there() -> None:
    """The measured settings with both GPUs, other targets, unlucky, named, random, changing and stationary worlds."""
    by_title = {row.title: row for row in rows(NOWHERE)}
    assert len(by_title["8 settings"].cases) == 8
    assert len(by_title["other targets"].cases) == 16
    assert {case.prior for case in by_title["warm, from the other GPU"].cases} == {"v100", "a40"}
    assert len(by_title["24 unlucky worlds"].cases) == 24
    assert len(by_title["60 random worlds"].cases) == 60
    assert by_title["two-humps over 1,000"].cases[0].recurrences == 1000
    assert [row.title for row in rows(NOWHERE) if row.group == "named"][0::4] == [
        "flat-noisy",
        "small-diverge",
        "steep-noisy",
    ]
    changing = [row for row in rows(NOWHERE) if row.group == "changing"]
    assert {row.limits[ALL] for row in changing} == {1.10, 1.25}
    assert [row.title for row in changing if row.limits[ALL] == 1.25] == ["small-begin-to-diverge"]
    assert {case.at_once for row in rows(NOWHERE) if row.group == "concurrent" for case in row.cases} == {
        1,
        2,
        4,
        8,
        16,
    }


@pytest.mark.thorough
def test_every_synthetic_case_can_be_loaded_and_stationary_ones_do_not_change() -> None:
    """10,000 launches of two seeds: no alarm is right there."""
    for row in rows(NOWHERE):
        for case in row.cases:
            if case.needs is None:
                made = case.load()
                assert isinstance(made, Workload)
                assert row.group != "stationary" or not made.changes
    (two, _) = (row for row in rows(NOWHERE) if row.group == "stationary")
    assert two.seeds_of(20) == 2
    synthetic = [case for case in two.cases if case.needs is None]
    measured = len(two.cases) - len(synthetic)
    assert 2 * (sum(case.recurrences or case.load().horizon for case in synthetic) + 70 * measured) > 10_000


def test_recorded_workloads_are_rows_with_their_own_limits(tmp_path: Path) -> None:
    """Every file one level below the folder; one that is not known has no limit."""
    for name in ("digits-adam", "mine"):
        (tmp_path / name).mkdir()
        (tmp_path / name / f"{name}.toml").touch()
    found = {row.title: row for row in rows(Folders(None, tmp_path)) if row.group == "real"}
    assert list(found) == ["digits-adam", "mine"]
    assert found["digits-adam"].cases == [Case("digits-adam/digits-adam.toml", recurrences=100)]
    assert (found["digits-adam"].limits[LOSING], found["mine"].limits) == (0.03, {})


def test_concurrent_settings_are_those_of_the_traces(folder: Path) -> None:
    """With traces every setting that can be played, without the paper's eight."""
    found = [row for row in rows(Folders(folder)) if row.title == "8 at a time"]
    assert [row.cases for row in found] == [[Case("squad/t4", at_once=8)]]


def test_the_figures_of_a_row() -> None:
    """Two cases of two seeds: means over seeds first, then over cases; shares of all four seeds; sums of all."""
    row = Row("named", "two", _CASES, {WORST: 9.0, ALARMS: 0}, also=[FIRST_WAVE])
    launches = np.ones((2, 40), int)
    launches[0, 3] = 5
    delivered = launches < 5
    one = _score(1.0, 1.2, launches=launches, alarms=np.array([0, 3]))
    other = _score(4.4, 4.4, settled=16)
    found = _line(row, one, other).values
    assert found[ALL] == pytest.approx(2.2)
    assert found[WORST] == pytest.approx(4.4)
    assert (found[LOSING], found[STUCK]) == (0.75, 0.5)
    assert (found[LAUNCHES], found[UNDELIVERED]) == (164 / 160, 0)
    assert found[ALARMS] == 3
    # Each alone costs 0.55 and 2.2 of the default.
    assert found[FIRST_WAVE] == pytest.approx(1.1)
    found = _line(row, replace(one, played=replace(one.played, delivered=delivered)), other).values
    assert (found[LAUNCHES], found[UNDELIVERED]) == (164 / 159, 1)


def test_a_limit_holds_for_what_is_printed() -> None:
    """Figures are rounded first; the worst case has a limit of its own."""
    row = Row("named", "two", _CASES, {ALL: 1.1, WORST: 1.15})
    missed = _line(row, _score(1.0), _score(1.2))
    assert (missed.met, missed.missed) == (False, ["worst"])
    assert _line(row, _score(1.1004), _score(1.1004)).met
    assert not _line(row, _score(1.1006), _score(1.1006)).met
    assert _line(Row("named", "two", _CASES), _score(9.0), _score(9.0)).met is None


def test_a_policy_is_compared_with_the_papers_case_by_case() -> None:
    """Better in one case does not make up for being worse in another, nor for a missing model."""
    row = Row("others", "two", _CASES, {TO_PAPERS: 1.01})
    papers = [_score(1.5), _score(1.5)]
    assert _line(row, _score(1.0), _score(1.6), papers=papers).values[TO_PAPERS] == pytest.approx(1.6 / 1.5)
    assert _line(row, _score(1.515), _score(1.0), papers=papers).met
    given_up = _score(1.0, delivered=np.arange(40)[None] > 0)
    assert _line(row, given_up, _score(1.0), papers=papers).missed == [TO_PAPERS.title]
    assert _line(row, _score(9.0), _score(9.0)).met is None


def _judged(earlier: Mapping[str, Sequence[float]], *, no_worse: bool) -> Line:
    row = Row("unlucky", "two", _CASES, {ALL: 9.0}, no_worse=no_worse)
    scores: Scores = {_CASES[0]: _score(1.0, 1.2, 5.0), _CASES[1]: _score(1.1, 1.1, 5.0)}
    first, second = lines([row], {"mine": scores, "other": scores}, 20, earlier)
    assert (first.contender, second.worse) == ("mine", [])
    return first


def test_cases_that_are_worse_than_before_are_named() -> None:
    """The same seeds are compared, and 0.01 is nothing; where no case may be worse, the limit is missed."""
    assert _judged({"seed 1": [1.09, 1.09], "seed 2": [1.091, 1.091]}, no_worse=True).met
    found = _judged({"seed 1": [1.08, 1.08], "seed 3": [0.5]}, no_worse=True)
    assert (found.worse, found.met, found.missed) == (["seed 1"], False, ["worse than before"])
    assert _judged({"seed 1": [1.08]}, no_worse=False).met


def test_rows_that_share_a_case_play_it_once() -> None:
    """With as many seeds as one of them needs; a quick table has six cases of a row, from the first to the last."""
    some = [Row("a", "usual", _CASES), Row("b", "more", [_CASES[1]], seeds=50), Row("c", "less", _CASES[:1], seeds=2)]
    assert seeds_of(some, 20) == {_CASES[0]: 20, _CASES[1]: 50}
    assert seeds_of(some, 4) == {_CASES[0]: 4, _CASES[1]: 10}
    assert seeds_of(some[2:], 3) == {_CASES[0]: 1}
    many = Row("a", "many", [Case(f"{seed}") for seed in range(60)]).quick()
    assert [case.workload for case in many.cases] == ["0", "12", "24", "35", "47", "59"]
    assert some[0].quick() == some[0]


def test_without_traces_no_measured_case_is_played() -> None:
    """Rows without another case are left out and named, rows that lack some are named; if none is left, it fails."""
    measured, mixed = Row("a", "measured", [Case("squad/a40")]), Row("b", "mixed", [Case("squad/a40"), Case("3")])
    kept, note = playable([measured, mixed], NOWHERE)
    assert kept == [Row("b", "mixed", [Case("3")])]
    assert note == "Left out, since they need --traces DIR: measured, mixed (in part)."
    assert playable([measured, mixed], Folders(Path())) == ([measured, mixed], "")
    with pytest.raises(
        ReplayError, match=r"need --traces DIR, the folder of the traces \(docs/results.md\): measured$"
    ):
        playable([measured], NOWHERE)


def _rows(*found: Row) -> Any:
    return lambda _: iter(found)


def test_the_table_judges_the_first_policy(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """A missed limit is printed as such and the exit status is 1; variants stand beside the policy."""
    humps = Row("named", "humps", [Case("two-humps", recurrences=50)], {ALL: 9.0, UNDELIVERED: 0})
    one = Row("named", "one", [Case("one-converges", recurrences=50)], {ALL: 9.0, UNDELIVERED: 0})
    monkeypatch.setattr(command, "rows", _rows(humps, one))
    file = tmp_path / "table.json"
    words = ("--seeds", "2", "--policy", PAPERS, "--details", "--processes", "1", "--json", str(file))
    assert command.main((*words, "--variants", f"{__name__}:VARIANTS")) == 1
    printed = capsys.readouterr().out
    assert _cells(printed, "humps", "limit")[5:6] == ["9.000"]
    assert _cells(printed, "humps", PAPERS)[2:] == _cells(printed, "humps", "pruning")[2:]
    assert _cells(printed, "humps", PAPERS)[2:] != _cells(printed, "humps", "sampling alone")[2:]
    assert _cells(printed, "humps", PAPERS)[-1] == "yes"
    assert _cells(printed, "one", PAPERS)[-1] == "**no**: all, no model"
    assert "fallbacks" in printed
    written = json.loads(file.read_text())
    assert (written["seeds"], written["contenders"]) == (2, [PAPERS, "sampling alone", "pruning"])
    met = {(each["row"], each["contender"]): each["met"] for each in written["rows"]}
    assert (met["humps", PAPERS], met["one", PAPERS]) == (True, False)
    assert written["cases"][PAPERS]["one-converges, recurrences 50"]["undelivered"] == [50, 50]
    assert len(written["cases"]["pruning"]["two-humps, recurrences 50"]["first 10"]) == 2


def test_limits_that_are_met_give_status_0(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """A later table is compared with the file; a quick one has three seeds."""
    row = Row("unlucky", "row", [Case("3", recurrences=30)], {ALL: 9.0}, no_worse=True)
    monkeypatch.setattr(command, "rows", _rows(row))
    file = tmp_path / "table.json"
    words = ("--policy", "gts", "--processes", "1")
    assert command.main((*words, "--quick", "--json", str(file))) == 0
    written = json.loads(file.read_text())
    (ratios,) = (each["all"] for each in written["cases"]["gts"].values())
    assert len(ratios) == 3
    assert command.main((*words, "--seeds", "3", "--baseline", str(file))) == 0
    file.write_text(file.read_text().replace(f"{ratios[0]}", f"{ratios[0] - 0.1}"))
    capsys.readouterr()
    assert command.main((*words, "--seeds", "3", "--baseline", str(file))) == 1
    assert "Worse than in the earlier table by more than 0.01: seed 3, recurrences 30." in capsys.readouterr().out


def test_another_default_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], folder: Path
) -> None:
    """Where the paper's default batch size was not measured, the table says which one replaces it."""
    power = folder / "summary_power_t4.csv"
    power.write_text(power.read_text().replace(",32,", ",64,"))
    monkeypatch.setattr(command, "rows", _rows(Row("settings", "one", [Case("squad/t4", target=84.0, recurrences=2)])))
    words = ("--traces", str(folder), "--seeds", "1", "--processes", "1", "--policy", "gts")
    assert command.main(words) == 0
    note = "squad/t4: the default batch size 32 was not measured; 64 replaces it."
    assert capsys.readouterr().out.splitlines()[-1] == note


def test_several_processes_play_the_same(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The table does not depend on the number of processes."""
    monkeypatch.setattr(command, "rows", _rows(Row("others", "one", [Case("3", recurrences=3)])))
    tables = []
    for processes in ("1", "2"):
        assert command.main(("--seeds", "6", "--policy", "gts", "--processes", processes)) == 0
        tables.append(capsys.readouterr().out)
    assert tables[0] == tables[1]


@pytest.mark.parametrize("variants", ["nowhere:VARIANTS", f"{__name__}:NOTHING", f"{__name__}", ":"])
def test_variants_that_cannot_be_loaded(variants: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The error names the option and its form, in one line."""
    assert command.main(("--rows", "humps", "--variants", variants)) == 1
    printed = capsys.readouterr().err
    assert f"cannot load --variants {variants}" in printed
    assert "MODULE:NAME" in printed
    assert printed.count("\n") == 1


@pytest.mark.parametrize("option", ["--json", "--baseline"])
def test_files_are_checked_before_anything_is_played(
    option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A file that cannot be written or read is named."""
    path = tmp_path / "none" / "table.json"
    assert command.main(("--rows", "humps", option, str(path))) == 1
    assert str(path) in capsys.readouterr().err
