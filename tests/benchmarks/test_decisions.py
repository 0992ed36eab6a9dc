"""The table of decisions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from wattwise_replay import acceptance, decisions
from wattwise_replay.acceptance import Case, ComparedRow, LaunchesRow, Limit, Row
from wattwise_replay.compare import HINDSIGHT, compare
from wattwise_replay.engines import Fixed
from wattwise_replay.errors import ReplayError
from wattwise_replay.scores import MAX_TRIES, Contender, Score, best_in_hindsight, joined, score
from wattwise_replay.workload import Workload
from wattwise_replay.world import World
from wattwise_server.domain import JobSpec, Search, TrialType
from wattwise_server.policy.base import Choice, Prior
from wattwise_server.policy.gts import Gts
from wattwise_server.policy.pruning_gts import PruningGts

from tests.replay.worlds import workload

VARIANTS = {"sampling alone": Gts, "pruning": PruningGts}
_PRUNING = Contender("POLICY_PRUNING_GTS", PruningGts)


class Stubborn(Gts):
    """A policy that chooses the default and nothing else."""

    def next(self, spec: JobSpec, search: Search, trial_number: int, rng: np.random.Generator) -> Choice:  # noqa: ARG002
        return Choice(TrialType.MAB, spec.default_batch_size, "it is the default")


def _line(text: str, title: str) -> list[str]:
    """The cells of the first line of the table with this title."""
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("|")]
    return next(cells for cells in rows if cells[0] == title)


@pytest.mark.parametrize("case", [Case("1"), Case("drift"), Case("all-fail"), Case("random-4", eta=1.0)])
def test_the_best_in_hindsight_is_that_of_the_replay(case: Case) -> None:
    """Computed at once for all seeds, it is the baseline that `wattwise replay` plays trial by trial."""
    made = case.load(None)
    world = World(made, case.eta, made.drift_at)
    played = compare(world, lambda *_: Fixed(made, made.default_batch_size), (), seeds=2)
    expected = np.array([ledger.costs for ledger in played.ledgers[HINDSIGHT]])
    assert best_in_hindsight(world, range(2), made.horizon) == pytest.approx(expected)


def test_a_score_compares_a_policy_with_the_best() -> None:
    """8 costs four times the best, 16: the walk tries it once to the end, and once to the bound, before 16 again."""
    made = replace(workload(4, 1), usual_recurrences=40)
    found = score(Case("made", eta=1.0), made, _PRUNING, range(3))
    assert found.best.tolist() == [[100.0] * 40] * 3
    assert found.costs.tolist() == [[400.0, 100.0, 100.0, 300.0 + 100.0] + [100.0] * 36] * 3
    assert found.launches.tolist() == [[1, 1, 1, 2] + [1] * 36] * 3
    assert found.ratio() == 46 / 40
    assert found.ratio(1) == 4.0
    assert (found.undelivered(), found.fallbacks) == (0, 0)


def test_a_launch_without_a_batch_size_trains_the_default() -> None:
    """Nothing converges, so the policy gives up: every other launch of the recurrence is the default's, and counted."""
    found = score(Case("made", recurrences=2), workload(None, None), _PRUNING, (0,))
    assert found.launches.tolist() == [[MAX_TRIES] * 2]
    assert found.undelivered() == 2
    assert found.undelivered(1) == 1
    assert 0 < found.fallbacks < 2 * MAX_TRIES


def test_a_model_that_was_not_delivered_is_never_cheap() -> None:
    """Where every launch fails at once and for nothing, a recurrence counts as many times the best as it has tries."""
    made = Case("default-out-of-memory").load(None)
    found = score(Case("made", recurrences=2), made, Contender("POLICY_GTS", Stubborn), (0,))
    assert found.undelivered() == 2
    assert found.costs.tolist() == (MAX_TRIES * found.best).tolist()
    assert (found.best > 0).all()


def test_a_failing_policy_is_named() -> None:
    """The error of a policy in the table names it as everywhere else."""

    class Failing(Gts):
        def register(self, spec: JobSpec, priors: Sequence[Prior]) -> Search:  # noqa: ARG002 - the protocol's
            raise ValueError(f"not {spec.policy}")

    with pytest.raises(ReplayError, match=r"^POLICY_MINE \(policy/mine\.py\) failed in register: ValueError: not GTS$"):
        score(Case("made", recurrences=1), workload(1), Contender("POLICY_MINE", Failing), (0,))


def test_groups_of_seeds_are_joined_in_order() -> None:
    """Two groups of seeds give the score of all of them together."""
    case, made = Case("2"), Case("2").load(None)
    whole = score(case, made, _PRUNING, range(3))
    parts = joined([score(case, made, _PRUNING, seeds) for seeds in ((0, 1), (2,))])
    assert parts.costs.tolist() == whole.costs.tolist()
    assert parts.ratio() == whole.ratio()


def test_every_row_is_there() -> None:
    """The measured settings with both GPUs, the other targets, every named world, 60 random ones."""
    rows = list(acceptance.rows())
    by_title = {row.title: row for row in rows}
    assert len(by_title["8 settings"].cases) == 8
    assert len(by_title["other targets"].cases) == 16
    assert {case.prior for case in by_title["warm, from the other GPU"].cases} == {"v100", "a40"}
    assert len(by_title["60 random worlds"].cases) == 60
    assert [row.title for row in rows if row.group == "named"][0::4] == ["flat-noisy", "small-diverge", "steep-noisy"]
    assert by_title["two-humps over 1,000"].cases[0].recurrences == 1000
    for row in rows:
        for case in row.cases:
            assert case.needs_traces or isinstance(case.load(None), Workload)


def test_a_case_has_its_prior(folder: Path) -> None:
    """The workload on another GPU with the same target, or its measurements reversed."""
    (folder / "summary_power_v1.csv").write_text((folder / "summary_power_t4.csv").read_text().replace(",100,", ",80,"))
    case = Case("squad/t4", target=83.5, prior="v1")
    prior = case.load_prior(folder)
    assert prior is not None
    assert (prior.gpu, prior.target_metric) == ("v1", 83.5)
    mirrored = Case("1", prior="mirrored").load_prior(None)
    assert mirrored == Case("1").load(None).mirrored() != Case("1").load(None)
    assert replace(case, prior=None).load_prior(folder) is None
    assert score(case, case.load(folder), _PRUNING, (0,), prior).undelivered() == 0


def test_the_table_judges_the_first_policy(capsys: pytest.CaptureFixture[str]) -> None:
    """A missed limit is printed as such and the exit status is 1; variants stand beside the policy."""
    words = ("--rows", "named", "--seeds", "2", "--policy", "POLICY_PRUNING_GTS", "--details", "--processes", "2")
    assert decisions.main((*words, "--variants", f"{__name__}:VARIANTS")) == 1
    printed = capsys.readouterr().out
    header = _line(printed, "")
    assert header == ["", "recurrences", "limit", "POLICY_PRUNING_GTS", "sampling alone", "pruning", "limit met"]
    humps, one = _line(printed, "two-humps"), _line(printed, "one-converges")
    assert (humps[1], humps[2], humps[-1]) == ("all", "1.2", "yes")
    assert humps[3] == humps[5] != humps[4]
    assert one[3].endswith("200 undelivered")
    assert one[-1] == "**no**"
    assert "| one-converges" in printed.split("fallbacks")[1]


def test_limits_that_are_met_give_status_0(capsys: pytest.CaptureFixture[str]) -> None:
    """The paper's policy finds the second valley within 1,000 recurrences."""
    assert decisions.main(("--rows", "humps", "--seeds", "1", "--policy", "POLICY_PRUNING_GTS")) == 0
    assert _line(capsys.readouterr().out, "two-humps over 1,000")[-1] == "yes"


def test_without_traces_no_measured_row_is_played(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Rows that need traces are left out, and named; if no other was chosen, that is an error."""
    rows = [
        Row("settings", "measured", [Case("squad/a40")], Limit(1.0), None),
        Row("named", "made", [Case("3", recurrences=3)], Limit(99.0), Limit(99.0)),
    ]
    monkeypatch.setattr(decisions, "rows", lambda: iter(rows))
    assert decisions.main(("--seeds", "1", "--policy", "POLICY_GTS")) == 0
    table, _, note = capsys.readouterr().out.partition("Left out, since they need --traces DIR: ")
    assert "measured" not in table
    assert "| made" in table
    assert note == "measured.\n"
    assert decisions.main(("--seeds", "1", "--rows", "named", "--policy", "POLICY_GTS")) == 0
    assert "--traces" not in capsys.readouterr().out
    assert decisions.main(("--rows", "settings")) == 1
    refused = capsys.readouterr().err
    assert refused.startswith("decisions: these rows need --traces DIR, the folder of the traces (docs/results.md): ")
    assert refused.endswith(": measured\n")


def _found(ratio: float, launches: int = 1) -> Score:
    """Forty recurrences of one seed that cost `ratio` times the best."""
    best = np.ones((1, 40))
    return Score(ratio * best, best, np.full((1, 40), launches), np.full((1, 40), fill_value=True), 0)


def test_the_worst_case_has_a_limit_of_its_own() -> None:
    """The geometric mean is within its limit, one case is not within its own."""
    cases = [Case("1"), Case("2")]
    row = Row("named", "two", cases, Limit(1.1, 1.15), None)
    scores = {(cases[0], "mine"): _found(1.0), (cases[1], "mine"): _found(1.2)}
    (line,) = decisions._lines(row, ["mine"], scores)
    assert line.cells[0] == ("1.095 (1.200)", False)
    scores[cases[1], "mine"] = _found(1.15)
    (line,) = decisions._lines(row, ["mine"], scores)
    assert line.cells[0] == ("1.072 (1.150)", True)


def test_a_policy_is_compared_with_the_papers_case_by_case() -> None:
    """Better in one case does not make up for being worse in another, which is named."""
    cases = [Case("far-1"), Case("far-2", eta=0.0)]
    row = ComparedRow("others", "two", cases, 1.01)
    papers = {(case, "POLICY_PRUNING_GTS"): _found(1.5) for case in cases}
    names = ["mine", "POLICY_PRUNING_GTS"]
    line = next(
        decisions._lines(row, names, {**papers, (cases[0], names[0]): _found(1), (cases[1], names[0]): _found(1.6)})
    )
    assert line.cells == [("1.265; 1.067 of the paper's in far-2, eta 0.0", False), ("1.500", None)]
    line = next(decisions._lines(row, names, {**papers, **{(case, names[0]): _found(1.515) for case in cases}}))
    assert line.cells[0].met


def test_launches_are_counted_over_all_recurrences() -> None:
    """A mean of 1.5 and a 99th percentile of 2: half of the recurrences need two launches."""
    cases = [Case("1"), Case("2")]
    row = LaunchesRow("random", "launches", cases, 1.5, 1, 1.49)
    scores = {(cases[0], "mine"): _found(1.0), (cases[1], "mine"): _found(1.0, launches=2)}
    cells = [line.cells[0] for line in decisions._lines(row, ["mine"], scores)]
    assert cells == [("1.500", True), ("1.500", False), ("2", False)]
    one = np.ones((1, 40), dtype=int)
    one[0, 7] = 2
    scores[cases[1], "mine"] = replace(_found(1.0), launches=one)
    *_, percentile = decisions._lines(row, ["mine"], scores)
    # One recurrence of 80 is more than 1%.
    assert percentile.cells[0] == ("2", False)


@pytest.mark.parametrize("variants", ["nowhere:VARIANTS", f"{__name__}:NOTHING", f"{__name__}", ":"])
def test_variants_that_cannot_be_loaded(variants: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The error names the option and its form, in one line."""
    assert decisions.main(("--rows", "humps", "--variants", variants)) == 1
    printed = capsys.readouterr().err
    assert f"cannot load --variants {variants}" in printed
    assert "MODULE:NAME" in printed
    assert printed.count("\n") == 1
