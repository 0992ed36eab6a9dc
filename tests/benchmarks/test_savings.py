"""Whether claims of what a job has saved hold."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from wattwise.rules import EndReason
from wattwise_replay.play import PlayedTrial
from wattwise_replay.workload import Crash, RecordedRun
from wattwise_server.domain import SavingsVerdict
from wattwise_server.policy.savings import LEAST_SPREAD, boundary

from benchmarks import savings
from benchmarks.decisions.cases import Case
from benchmarks.savings import Claim, Line, chance, claimed, claims, default_cost, summary
from tests.replay.worlds import workload

_POLICIES = ("knowledge_gradient", "pruning_gts")


def _rows(text: str, title: str) -> list[list[str]]:
    """The three lines of a case in the first table that has it."""
    lines = text.splitlines()
    first = next(number for number, line in enumerate(lines) if line.strip().startswith(f"{title} "))
    return [line.replace(title, "").split() for line in lines[first : first + 3]]


def test_a_claim_is_made_of_all_trials() -> None:
    """A trial that missed the target is spent, one that reached it over its bound is delivered."""

    def trial(batch_size: int, cost: float, *, reached: bool) -> PlayedTrial:
        return PlayedTrial(0, 0, batch_size, 200.0, 1, 1.0, 1.0, cost, reached)

    default = [trial(8, 400.0, reached=True)] * 3
    found = claimed([*default, trial(16, 100.0, reached=True), trial(16, 70.0, reached=False)], 8)
    assert (found.deliveries, found.spent) == (4, 1370.0)
    assert found.lost == 1370.0 - 4 * 400.0


def test_the_truth_is_the_mean_of_the_runs_that_deliver() -> None:
    """Runs that never reach the target, or crash before, are no part of it; at eta 1 an epoch costs 100 J."""
    made = workload(2)
    (only,) = made.batch_sizes
    runs = (
        RecordedRun(2),
        RecordedRun(6),
        RecordedRun(None),
        RecordedRun(11),
        RecordedRun(5, Crash(3, EndReason.ERROR)),
    )
    made = replace(made, batch_sizes=(replace(only, runs=runs),))
    assert default_cost(made, 1.0) == 400.0
    assert np.isnan(default_cost(workload(None), 1.0))


def test_a_claim_stands_beside_the_truth() -> None:
    """8 costs four times as much as 16, exactly: the walk delivers with it once, and four baselines do."""
    (found,) = claims(Case("made", eta=1.0), workload(4, 1), "pruning_gts", 0, (40,))
    assert found is not None
    would = 40 * 400.0
    assert (found.verdict, found.runs) == (SavingsVerdict.SAVING, 5)
    assert found.true == pytest.approx(1 - 5800 / would)
    assert found.plain == pytest.approx(found.true)
    assert found.saved == pytest.approx(np.exp(-LEAST_SPREAD / np.sqrt(5)) - 5800 / would)
    assert found.at_least == pytest.approx(np.exp(-LEAST_SPREAD * boundary(5) / 5) - 5800 / would)
    assert found.holds


def test_without_baselines_there_is_no_claim() -> None:
    """The walk runs the default twice, once to the bound; a claim takes three deliveries."""
    assert claims(Case("made", eta=1.0), workload(4, 1), "pruning_gts", 0, (40,), every=0) == [None]


def test_the_truth_follows_the_default_after_a_drift() -> None:
    """The default costs a quarter from the seventh recurrence on: deliveries count at what it would cost then."""
    made = workload(4, 1).drifting(6)
    early, late = claims(Case("made", eta=1.0), made, "pruning_gts", 0, (6, 8), every=2)
    assert early is not None
    assert late is not None
    assert early.true == pytest.approx(early.plain)
    assert late.true == pytest.approx(1 - 2000 / (6 * 400 + 2 * 100))


def test_a_claim_compares_trials_since_the_newest_change() -> None:
    """All epochs halve after 50 launches: beside a default from before, later trials would look like a saving."""
    case = Case("epochs-halve")
    (detected,), (unnoticed,) = (claims(case, case.load(), policy, 0, (100,)) for policy in _POLICIES)
    assert detected is not None
    assert unnoticed is not None
    assert detected.plain == pytest.approx(detected.true, abs=0.15)
    assert unnoticed.plain > unnoticed.true + 0.05


def test_a_default_that_never_delivers_has_no_claim() -> None:
    """One of each horizon, each without."""
    assert claims(Case("made", eta=1.0), workload(None, 1), "pruning_gts", 0, (1, 5)) == [None, None]


def test_launches_without_a_choice_are_no_trials_of_the_job() -> None:
    """Where the policy gives up, trainers run the default on their own, and the server learns nothing of it."""
    assert claims(Case("made", eta=1.0), workload(None, None), "pruning_gts", 0, (3,)) == [None]


def _claim(saved: float, at_least: float) -> Claim:
    """One with a true saving of 10%."""
    return Claim(SavingsVerdict.UNCERTAIN, 2, 0.1, 0.1, saved, at_least)


def test_both_limits_are_judged() -> None:
    """An estimate that overstates on average fails, and so does a bound that fails too often for chance."""
    fine = summary([_claim(0.1, 0.1)] * 16 + [_claim(0.1, 0.2)] * 2 + [None])
    assert (len(fine.claims), fine.without, fine.met) == (18, 1, True)
    assert fine.covered == 16 / 18
    assert not summary([_claim(0.1, 0.1)] * 14 + [_claim(0.1, 0.2)] * 4).met
    assert not summary([_claim(0.1, 0.0), _claim(0.11, 0.0)]).met
    assert summary([_claim(0.2, 0.0), _claim(0.0, 0.0)]).met
    assert summary([None]).met


@pytest.mark.parametrize(
    ("missed", "seeds", "probability"), [(0, 7, 1.0), (1, 1, 0.05), (2, 2, 0.0025), (4, 40, 0.1381)]
)
def test_few_misses_are_chance(missed: int, seeds: int, probability: float) -> None:
    """The upper tail of the binomial distribution with 5%."""
    assert chance(missed, seeds) == pytest.approx(probability, abs=5e-5)


def test_all_bounds_together_hold_in_95_percent(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Misses that chance explains in every case are too many if they are in every one."""
    found = [[_claim(0.1, 0.1)] * 3] * 8 + [[_claim(0.1, 0.2)] * 3]
    monkeypatch.setattr(savings, "lines", lambda: iter([Line("two-humps", [Case("two-humps")])]))
    monkeypatch.setattr(savings, "_played", lambda _: found)
    monkeypatch.setattr(savings, "ProcessPoolExecutor", _SameProcess)
    assert savings.main(("--policy", _POLICIES[1])) == 1
    printed = capsys.readouterr().out
    assert "!" not in printed.split(_POLICIES[1])[1].split("Limits")[0]
    assert "27 claims: the bound holds in 88.9%." in printed


def test_verdicts_are_compared_with_the_truth(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A saving where the job has saved is right, a loss there is wrong."""
    numbers = np.array([0.1, 0.0])
    right, wrong = (
        Claim(verdict, 2, numbers[0], 0.1, *numbers) for verdict in (SavingsVerdict.SAVING, SavingsVerdict.LOSS)
    )
    monkeypatch.setattr(savings, "lines", lambda: iter([Line("two-humps", [Case("two-humps")])]))
    monkeypatch.setattr(savings, "_played", lambda _: [[right] * 3, [wrong] * 3])
    monkeypatch.setattr(savings, "ProcessPoolExecutor", _SameProcess)
    savings.main(("--policy", _POLICIES[1]))
    printed = " ".join(capsys.readouterr().out.split())
    assert "SAVING: 50%, wrong in 0.0% of these." in printed
    assert "LOSS: 50%, wrong in 100.0% of these." in printed


class _SameProcess:
    """A pool that keeps what a test has replaced."""

    def __init__(self, _: int) -> None: ...

    def __enter__(self) -> _SameProcess:
        return self

    def __exit__(self, *_: object) -> None: ...

    map = staticmethod(map)


@pytest.mark.thorough
@pytest.mark.parametrize("policy", _POLICIES)
@pytest.mark.parametrize("name", ["best-default-noisy", "bimodal", "uneven-noise"])
def test_claims_hold_in_the_hardest_worlds(policy: str, name: str) -> None:
    """In 40 seeds the bound holds in at least 38, and the estimate does not overstate, where the plain rule does."""
    case = Case(name)
    made = case.load()
    found = [claims(case, made, policy, seed, (40,))[0] for seed in range(40)]
    every = summary(found)
    assert len(every.claims) > 35
    assert every.covered >= 0.95
    assert every.over.mean() < 0
    plain = np.mean([claim.plain - claim.true for claim in every.claims])
    assert plain > every.over.mean() + 0.05


def test_the_table_fits_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    """One policy, one exact line and one that is not judged: the columns in order, the totals, status 0."""
    words = ("--lines", "two-humps", "--lines", "drift", "--seeds", "2", "--policy", _POLICIES[0], "--processes", "1")
    assert savings.main(words) == 0
    printed = capsys.readouterr().out
    assert max(map(len, printed.splitlines())) <= 80
    humps = _rows(printed, "two-humps")
    assert [row[0] for row in humps] == ["20", "40", "100"]
    assert {row[-1] for row in humps} == {"100.0%"}
    assert float(humps[0][4].rstrip("%")) < 0 < float(humps[2][1])
    assert _rows(printed, "drift *")[2][0] == "100"
    # The line that is not judged is not counted.
    assert "6 claims: the bound holds in 100.0%" in printed
    assert "Limits met: " in printed


def test_a_missed_limit_gives_status_1(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A case that misses one is marked, unless its line is not judged."""
    monkeypatch.setattr(savings, "_UNLIKELY", 1.01)
    words = ("--lines", "two-humps", "--seeds", "1", "--policy", _POLICIES[1], "--processes", "1")
    assert savings.main(words) == 1
    printed = capsys.readouterr().out
    assert {row[-2] for row in _rows(printed, "two-humps")} == {"!"}
    assert "Limits missed (!)" in printed
    assert savings.main(("--lines", "drift", "--seeds", "1", "--policy", _POLICIES[1])) == 0


def test_lines_of_the_traces_need_them(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """They are left out and named; if no other was chosen, that is an error."""
    monkeypatch.setattr(
        savings, "lines", lambda: iter([Line("squad/t4", [Case("squad/t4")]), Line("3", [Case("two-humps")])])
    )
    words = ("--seeds", "1", "--policy", _POLICIES[1], "--processes", "1")
    assert savings.main(words) == 0
    printed = capsys.readouterr().out
    assert "squad/t4." in printed
    assert "squad/t4 " not in printed
    assert savings.main((*words, "--traces", str(folder))) == 0
    assert len(_rows(capsys.readouterr().out, "squad/t4")) == 3
    assert savings.main((*words, "--lines", "squad/t4")) == 1
    assert capsys.readouterr().err.startswith("savings: these lines need --traces DIR")
    assert savings.main((*words, "--traces", str(folder / "none"))) == 1
    assert capsys.readouterr().err.startswith("savings: no measurements of GPU 't4'")
    with pytest.raises(SystemExit):
        savings.main(("--seeds", "0"))
    assert "--seeds is 0; use a number from 1" in capsys.readouterr().err


def test_every_line_has_its_workloads() -> None:
    """The eight measured settings, three recorded workloads, and named worlds; changing defaults are not judged."""
    found = list(savings.lines())
    assert sum(line.cases[0].needs is not None for line in found) == 8 + 3
    changing = ["drift *", "epochs-triple *", "epochs-halve *", "epoch-cost-doubles *"]
    assert [line.title for line in found if not line.judged] == changing
    for line in found:
        for case in line.cases:
            if not case.needs:
                made = case.load()
                assert default_cost(made, 0.5) > 0 or case.workload == "one-converges"
