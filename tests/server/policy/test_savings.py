"""What a job has saved."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from wattwise_server.domain import Moments, SavingsVerdict
from wattwise_server.policy.savings import (
    EXPLORING_LAUNCHES,
    LEAST_RUNS,
    Delivered,
    ProofState,
    SavingsEstimate,
    SavingsProof,
    Settling,
    advice,
    boundary,
    estimate,
    proof,
    total_verdict,
)

_VALUES = st.lists(st.floats(1e-3, 1e9), min_size=LEAST_RUNS, max_size=8)
_REACHED = st.dictionaries(st.sampled_from([8, 16, 32]), _VALUES, max_size=2).flatmap(
    lambda others: _VALUES.map(lambda default: {**others, 64: default})
)


Reached = Mapping[int, Sequence[float | None]]
"""What the trials of each batch size took that reached the target; None if that was not measured."""


def _claim(
    reached: Reached, wasted: float = 0.0, launches: int = EXPLORING_LAUNCHES + 1, used: int = 32
) -> SavingsEstimate:
    """The claim of a job with the default 64 that spent what its deliveries took, and more without success."""
    deliveries = sum(map(len, reached.values()))
    sums = {size: Delivered.of(values) for size, values in reached.items()}
    spent = sum(value or 0.0 for values in reached.values() for value in values) + wasted
    in_use = sums[used].mean if used in sums else None
    return estimate(sums, default_batch_size=64, deliveries=deliveries, spent=spent, launches=launches, in_use=in_use)


def _numbers(found: SavingsEstimate) -> tuple[float, float, float]:
    assert found.saved is not None
    assert found.at_least is not None
    assert found.lost is not None
    return found.saved, found.at_least, -found.lost


def test_the_numbers_of_a_job() -> None:
    """Three runs of the default at 100 J, 200 J and 400 J, seven of 32 at 50 J, and 30 J wasted."""
    found = _claim({64: [100.0, 200.0, 400.0], 32: [50.0] * 7}, wasted=30.0)
    assert (found.deliveries, found.spent) == (10, 1080.0)
    assert found.baseline is not None
    own = math.log(2)
    assert found.baseline.runs == 3
    assert found.default_mean == found.baseline.mean == pytest.approx(700 / 3)
    assert found.baseline.cautious == pytest.approx(200 * math.exp(-own / math.sqrt(3)))
    assert found.baseline.least == pytest.approx(200 * math.exp(-own * boundary(3) / 3))
    saved, at_least, balance = _numbers(found)
    assert saved == pytest.approx(10 * found.baseline.cautious - 1080.0)
    assert at_least == pytest.approx(10 * found.baseline.least - 1080.0)
    assert balance == pytest.approx(7000 / 3 - 1080.0)
    assert found.verdict is SavingsVerdict.UNCERTAIN


@pytest.mark.parametrize(("runs", "boundary_of_a_sum"), [(1, 3.29696), (2, 4.17710), (10, 8.81404), (100, 30.54913)])
def test_the_boundary_has_its_value(runs: int, boundary_of_a_sum: float) -> None:
    """Computed with 50 digits from the formula."""
    assert boundary(runs) == pytest.approx(boundary_of_a_sum, abs=5e-6)


def test_the_boundary_is_rarely_crossed_at_any_number_of_runs() -> None:
    """Of 4,000 sums of normal values, at most 5% exceed it within the first 400; for a fixed number far fewer do."""
    sums = np.random.default_rng(1).standard_normal((4000, 400)).cumsum(axis=1)
    crossed = sums > np.array([boundary(runs) for runs in range(1, 401)])
    assert 0.015 < crossed.any(axis=1).mean() < 0.05
    assert crossed[:, 9].mean() < 0.01


@pytest.mark.parametrize(("runs", "cautious", "least"), [(3, 0.881, 0.696), (5, 0.906, 0.760), (20, 0.952, 0.870)])
def test_equal_costs_leave_the_least_spread(runs: int, cautious: float, least: float) -> None:
    """Runs that cost the same are taken to differ by a standard deviation of 0.22."""
    found = _claim({64: [100.0] * runs})
    assert found.baseline is not None
    assert found.baseline.cautious / 100 == pytest.approx(cautious, abs=5e-4)
    assert found.baseline.least / 100 == pytest.approx(least, abs=5e-4)


def test_the_spread_is_the_largest_of_three() -> None:
    """That of all batch sizes where they differ much, the default's own where it does, the floor where neither does."""
    noisy = [math.exp(0.8), math.exp(-0.8)] * 20
    calm = [1.0] * 40
    pooled, own, floor = (
        _claim({64: default, 32: other}).baseline
        for default, other in (([1.0] * 3, noisy), (noisy, calm), ([1.0] * 3, calm))
    )
    assert pooled is not None
    assert own is not None
    assert floor is not None
    assert pooled.cautious == pytest.approx(math.exp(-0.8 * math.sqrt(40 / 41) / math.sqrt(3)))
    assert own.cautious == pytest.approx(math.exp(-0.8 * math.sqrt(40 / 39) / math.sqrt(40)))
    assert floor.cautious == pytest.approx(math.exp(-0.22 / math.sqrt(3)))


@given(_REACHED, st.floats(0, 1e9))
def test_the_bound_is_below_the_estimate_and_that_below_the_plain_rule(
    reached: dict[int, list[float]], wasted: float
) -> None:
    """at_least < saved < deliveries × mean − spent, whatever the trials took."""
    found = _claim(reached, wasted)
    assert found.baseline is not None
    assert 0 <= found.baseline.least < found.baseline.cautious < found.baseline.mean <= found.baseline.generous
    saved, at_least, balance = _numbers(found)
    assert at_least <= saved <= balance


@given(_REACHED, st.floats(0, 1e9), st.sampled_from([1e-3, 3.6e6, 7.0]))
def test_units_do_not_matter(reached: dict[int, list[float]], wasted: float, factor: float) -> None:
    """A claim in joules is one in kilowatt-hours times a factor, whether before or after the computation."""
    scaled = _claim({size: [factor * each for each in values] for size, values in reached.items()}, factor * wasted)
    converted = _claim(reached, wasted).times(factor)
    assert converted.baseline is not None
    assert scaled.baseline is not None
    assert scaled.baseline == pytest.approx(converted.baseline, rel=1e-6)
    assert scaled.spent == pytest.approx(converted.spent, rel=1e-9)
    assert scaled.deliveries == converted.deliveries


@given(_REACHED, st.floats(0, 1e6), st.floats(0, 1e6))
def test_what_is_wasted_lowers_a_claim_by_as_much(reached: dict[int, list[float]], wasted: float, more: float) -> None:
    """A trial without a model lowers the estimate and the bound by exactly what it took."""
    before, after = _claim(reached, wasted), _claim(reached, wasted + more)
    for first, second in zip(_numbers(before), _numbers(after), strict=True):
        assert first - second == pytest.approx(more, rel=1e-6, abs=1e-4)


def test_few_long_runs_of_the_default_never_raise_the_bound() -> None:
    """A run a hundred times as long raises the mean by a factor of 20, and lowers the bound."""
    usual, long = _claim({64: [100.0] * 5}), _claim({64: [100.0] * 4 + [10_000.0]})
    assert usual.baseline is not None
    assert long.baseline is not None
    assert long.baseline.mean > 20 * usual.baseline.mean
    assert long.baseline.least < usual.baseline.least


@pytest.mark.parametrize(
    ("reached", "wasted", "verdict"),
    [
        ({}, 5.0, SavingsVerdict.NO_DELIVERY),
        ({32: [10.0]}, 0.0, SavingsVerdict.NO_BASELINE),
        ({64: [477.0, 477.0], 32: [10.0] * 99}, 0.0, SavingsVerdict.NO_BASELINE),
        ({64: [None, 1.0]}, 0.0, SavingsVerdict.NOT_MEASURED),
        ({64: [None], 32: [None]}, 0.0, SavingsVerdict.NOT_MEASURED),
        ({64: [1.0], 32: [None]}, 0.0, SavingsVerdict.NOT_MEASURED),
        ({64: [0.0, 1.0, 1.0, 1.0]}, 0.0, SavingsVerdict.NO_BASELINE),
        ({64: [0.0] * 3, 32: [0.0]}, 0.0, SavingsVerdict.NO_BASELINE),
        ({64: [100.0] * 3, 32: [0.0] * 9}, 0.0, SavingsVerdict.SAVING),
        ({64: [100.0] * 3, 32: [10.0] * 9}, 0.0, SavingsVerdict.SAVING),
        ({64: [100.0] * 3, 32: [70.0] * 9}, 0.0, SavingsVerdict.UNCERTAIN),
        ({64: [100.0] * 3, 32: [113.0] * 9}, 0.0, SavingsVerdict.UNCERTAIN),
        ({64: [100.0] * 3, 32: [114.0] * 9}, 0.0, SavingsVerdict.LOSS),
        ({64: [100.0] * 9}, 50.0, SavingsVerdict.LOSS),
        ({64: [100.0] * 9}, 1e-3, SavingsVerdict.LOSS),
        ({64: [100.0] * 9, 32: [107.0]}, 0.0, SavingsVerdict.UNCERTAIN),
        ({64: [100.0] * 9, 32: [108.0]}, 0.0, SavingsVerdict.LOSS),
        ({64: [0.1] * 3}, 0.0, SavingsVerdict.UNCERTAIN),
        ({64: [0.1, 0.2, 0.7]}, 0.0, SavingsVerdict.UNCERTAIN),
    ],
)
def test_a_claim_has_a_verdict(reached: Reached, wasted: float, verdict: SavingsVerdict) -> None:
    """A job that only ran its default has lost nothing, whatever the rounding."""
    found = _claim(reached, wasted)
    assert found.verdict is verdict
    claims = verdict in {SavingsVerdict.SAVING, SavingsVerdict.UNCERTAIN, SavingsVerdict.LOSS}
    for number in (found.baseline, found.saved, found.at_least, found.lost):
        assert (number is not None) is claims
    assert found.times(2.0).verdict is verdict


def test_imported_trials_are_evidence_and_no_deliveries() -> None:
    """Ten runs of the default from before the job: they tighten the bound, and nothing was spent on them."""
    sums = {64: Delivered.of([100.0] * 11), 32: Delivered.of([50.0] * 4)}
    found = estimate(sums, default_batch_size=64, deliveries=5, spent=300.0, launches=5)
    assert found.baseline is not None
    assert found.baseline.runs == 11
    assert found.lost == pytest.approx(-200.0)
    assert found.at_least == pytest.approx(5 * found.baseline.least - 300.0)
    assert found.verdict is SavingsVerdict.SAVING


@pytest.mark.parametrize(
    ("changed", "fault"),
    [
        ({"deliveries": -1}, "deliveries is -1"),
        ({"spent": -1.0}, "spent is -1.0"),
        ({"spent": math.nan}, "spent is nan"),
        ({"spent": math.inf}, "spent is inf"),
        ({"reached": {64: Delivered(1, 1.0, Moments(2, 0.0, 0.0))}}, "batch size 64 has 2 logarithms of 1 trials"),
        (
            {"reached": {64: Delivered(2, 1.0, Moments(2), 1)}},
            "batch size 64 has 2 logarithms of 2 trials, 1 unmeasured",
        ),
        ({"reached": {64: Delivered(-1, 1.0)}}, "batch size 64 has 0 logarithms of -1 trials"),
        ({"reached": {64: Delivered(1, math.inf, Moments(1))}}, "the sums of batch size 64 are negative or not finite"),
        ({"reached": {64: Delivered(1, -1.0, Moments(1))}}, "the sums of batch size 64 are negative or not finite"),
        ({"reached": {64: Delivered(1, 1.0, Moments(1, math.nan))}}, "the sums of batch size 64 are negative"),
    ],
)
def test_impossible_sums_are_refused(changed: dict[str, Any], fault: str) -> None:
    """The error names the number."""
    arguments: dict[str, Any] = {"reached": {}, "default_batch_size": 64, "deliveries": 1, "spent": 1.0, "launches": 1}
    arguments |= changed
    with pytest.raises(ValueError, match=f"^{fault}"):
        estimate(arguments.pop("reached"), **arguments)


@pytest.mark.parametrize("factor", [-1.0, math.nan, math.inf])
def test_a_unit_is_a_finite_factor(factor: float) -> None:
    """Nothing else converts an amount."""
    with pytest.raises(ValueError, match="use a finite number from 0"):
        _claim({64: [1.0]}).times(factor)


def test_carbon_of_clean_energy_is_zero() -> None:
    """Energy without emissions saves none of them, which is known."""
    clean = _claim({64: [100.0] * 3, 32: [10.0] * 20}).times(0.0)
    assert clean.verdict is SavingsVerdict.SAVING
    assert (clean.spent, clean.saved, clean.at_least) == (0.0, 0.0, 0.0)


def test_extreme_costs_have_a_claim() -> None:
    """Costs at both ends of what is accepted leave all figures finite."""
    found = _claim({64: [1e100] * 3, 32: [1e-200, 1e100]})
    assert all(map(math.isfinite, _numbers(found)))
    assert found.verdict is SavingsVerdict.UNCERTAIN


def test_what_running_trials_spent_is_no_loss() -> None:
    """It counts against the saving only; what ended trials spent above the default's runs is a loss."""
    sums = {64: Delivered.of([100.0] * 4)}
    running = estimate(sums, default_batch_size=64, deliveries=4, spent=490.0, launches=11, running=90.0)
    assert (running.verdict, running.lost) == (SavingsVerdict.UNCERTAIN, 0.0)
    ended = estimate(sums, default_batch_size=64, deliveries=4, spent=490.0, launches=11)
    assert (ended.verdict, ended.lost) == (SavingsVerdict.LOSS, 90.0)
    assert running.at_least == ended.at_least
    with pytest.raises(ValueError, match=r"^running"):
        estimate(sums, default_batch_size=64, deliveries=4, spent=490.0, launches=11, running=491.0)


def test_rounding_of_equal_costs_is_no_error() -> None:
    """A database may compute a sum of squared deviations just below 0."""
    sums = {64: Delivered(3, 7.0, Moments(3, math.log(7), -1e-17))}
    found = estimate(sums, default_batch_size=64, deliveries=3, spent=21.0, launches=3)
    assert found.baseline == _claim({64: [7.0] * 3}).baseline


@pytest.mark.parametrize("runs", [0, 1, 2])
def test_nothing_is_claimed_before_three_runs_of_the_default(runs: int) -> None:
    """One disturbed run would be a saving of nearly everything."""
    reached = {32: [100.0] * 20} | ({64: [477.0] * runs} if runs else {})
    found = _claim(reached)
    assert found.verdict is SavingsVerdict.NO_BASELINE
    assert (found.baseline, found.saved, found.at_least, found.at_most, found.lost) == (None,) * 5
    assert found.default_mean == (477.0 if runs else None)


def test_one_disturbed_run_among_three_proves_nothing() -> None:
    """A run of 477 J beside two of 150 J widens the bound, instead of raising it."""
    calm, disturbed = _claim({64: [150.0] * 3, 32: [100.0] * 40}), _claim({64: [477.0, 150.0, 150.0], 32: [100.0] * 40})
    assert calm.baseline is not None
    assert disturbed.baseline is not None
    assert disturbed.baseline.least < calm.baseline.least
    assert disturbed.verdict is SavingsVerdict.UNCERTAIN


@pytest.mark.parametrize("runs", [1, 3])
def test_the_first_launches_explore(runs: int) -> None:
    """Up to ten launches there is no loss, whether there is a claim or not; a saving is one from the start."""
    lost = {64: [100.0] * runs, 32: [200.0] * 6}
    exploring, later = (_claim(lost, launches=EXPLORING_LAUNCHES + more) for more in (0, 1))
    assert exploring.verdict is SavingsVerdict.EXPLORING
    assert later.verdict is (SavingsVerdict.NO_BASELINE if runs < LEAST_RUNS else SavingsVerdict.LOSS)
    assert exploring.baseline == later.baseline
    assert _claim({64: [100.0] * 3, 32: [10.0] * 6}, launches=9).verdict is SavingsVerdict.SAVING


@pytest.mark.parametrize("runs", [3, 4, 6])
def test_what_would_settle_a_claim_settles_it(runs: int) -> None:
    """After so many launches of either kind at their means there is a saving, and not after one less of either."""
    default, other = [100.0] * runs, [75.0] * 20
    way = _claim({64: default, 32: other}).settling
    assert way is not None

    def verdict(more: int, others: int) -> SavingsVerdict:
        return _claim({64: default + [100.0] * more, 32: other + [75.0] * others}).verdict

    assert verdict(*way) is SavingsVerdict.SAVING
    assert way.launches == 0 or verdict(way.runs, way.launches - 1) is not SavingsVerdict.SAVING
    assert way.runs == 0 or verdict(way.runs - 1, way.launches) is not SavingsVerdict.SAVING


def test_a_held_job_does_not_explore() -> None:
    """Its first launches have the verdict of later ones, except that they are no loss."""

    def verdict(reached: Reached, launches: int) -> SavingsVerdict:
        sums = {size: Delivered.of(values) for size, values in reached.items()}
        spent = sum(value or 0.0 for values in reached.values() for value in values)
        deliveries = sum(map(len, reached.values()))
        return estimate(
            sums, default_batch_size=64, deliveries=deliveries, spent=spent, launches=launches, held=True
        ).verdict

    for launches in (1, EXPLORING_LAUNCHES):
        assert verdict({64: [100.0] * 2}, launches) is SavingsVerdict.NO_BASELINE
        assert verdict({64: [100.0] * 3, 32: [200.0] * 6}, launches) is SavingsVerdict.UNCERTAIN
        assert verdict({64: [100.0] * 3, 32: [10.0] * 6}, launches) is SavingsVerdict.SAVING
    assert verdict({64: [100.0] * 3, 32: [200.0] * 8}, EXPLORING_LAUNCHES + 1) is SavingsVerdict.LOSS


def _model(reached: Reached, in_use: float | None, verdict: SavingsVerdict | None = None) -> SavingsEstimate:
    found = replace(_claim(reached), in_use=in_use, with_default=100.0)
    return found if verdict is None else replace(found, verdict=verdict)


@pytest.mark.parametrize(
    ("found", "facts", "expected"),
    [
        (_model({64: [100.0] * 3, 32: [10.0] * 20}, 10.0), {}, SavingsProof()),
        (_model({64: [100.0] * 3, 32: [200.0] * 20}, 200.0), {}, SavingsProof()),
        (_model({}, None), {}, SavingsProof()),
        (_model({64: [100.0] * 3}, 10.0, SavingsVerdict.NOT_MEASURED), {}, SavingsProof()),
        (_model({64: [100.0] * 3}, 90.0), {"default_only": True}, SavingsProof(ProofState.DEFAULT_ONLY)),
        (
            _model({64: [100.0], 32: [10.0] * 9}, 70.0),
            {"num_baselines": 1},
            SavingsProof(ProofState.NEEDS_BASELINES, 2, 0, 60.0),
        ),
        (
            _model({64: [100.0], 32: [10.0] * 9}, None),
            {"num_baselines": 1},
            SavingsProof(ProofState.NEEDS_BASELINES, 2, 0, None),
        ),
        (
            _model({64: [100.0] * 3, 32: [100.0] * 9}, 100.0),
            {"default_in_use": True},
            SavingsProof(ProofState.DEFAULT_IN_USE),
        ),
        (_model({64: [100.0] * 3, 32: [99.0] * 9}, 99.0), {}, SavingsProof(ProofState.TOO_SMALL)),
        (_model({64: [100.0] * 3, 32: [100.0] * 9}, 100.0), {}, SavingsProof(ProofState.NO_SAVING)),
    ],
)
def test_what_would_prove_a_saving(found: SavingsEstimate, facts: dict[str, Any], expected: SavingsProof) -> None:
    """Nothing is to prove after a saving, a loss, or without deliveries that were measured."""
    usual = {"num_baselines": 3, "default_only": False, "default_in_use": False}
    assert proof(found, **usual | facts) == expected


@pytest.mark.parametrize("in_use", [75.0, None])
def test_the_way_to_a_proof_has_its_price(in_use: float | None) -> None:
    """It is that of the further runs of the default, if what they and other launches take is known."""
    found = replace(_claim({64: [100.0] * 3, 32: [75.0] * 20}), in_use=in_use, with_default=100.0)
    assert found.settling is not None
    runs, launches = found.settling
    price = None if in_use is None or not runs else 25.0 * runs
    way = SavingsProof(ProofState.NEEDS_LAUNCHES, runs, launches, price)
    assert proof(found, num_baselines=3, default_only=False, default_in_use=False) == way


def test_only_a_way_that_may_show_a_saving_is_named() -> None:
    """None if the batch size in use costs more than the default, has no delivery, or if a saving is shown."""
    assert _claim({64: [100.0] * 3, 32: [101.0] * 20}).settling is None
    assert _claim({64: [100.0] * 3, 8: [50.0] * 4}, used=32).settling is None
    assert _claim({64: [100.0] * 3, 32: [10.0] * 20}).settling is None
    assert _claim({32: [10.0] * 20}).settling is None
    assert _claim({64: [477.0] * 2, 32: [110.0] * 20}).settling is None
    assert isinstance(_claim({64: [100.0] * 3, 32: [75.0] * 3}).settling, Settling)


@pytest.mark.parametrize(
    ("verdicts", "at_least", "at_most", "expected"),
    [
        ((), None, None, SavingsVerdict.NO_DELIVERY),
        ((SavingsVerdict.NO_DELIVERY,), None, None, SavingsVerdict.NO_DELIVERY),
        ((SavingsVerdict.NO_DELIVERY, SavingsVerdict.EXPLORING), None, None, SavingsVerdict.EXPLORING),
        ((SavingsVerdict.EXPLORING,), -3.0, 0.0, SavingsVerdict.EXPLORING),
        ((SavingsVerdict.EXPLORING, SavingsVerdict.SAVING), 2.0, 5.0, SavingsVerdict.SAVING),
        ((SavingsVerdict.NO_BASELINE,), None, None, SavingsVerdict.NO_BASELINE),
        ((SavingsVerdict.NO_BASELINE, SavingsVerdict.NOT_MEASURED), None, None, SavingsVerdict.NO_BASELINE),
        ((SavingsVerdict.NOT_MEASURED,), None, None, SavingsVerdict.NOT_MEASURED),
        ((SavingsVerdict.SAVING, SavingsVerdict.NO_BASELINE), None, None, SavingsVerdict.NOT_MEASURED),
        ((SavingsVerdict.UNCERTAIN,), -1.0, 0.5, SavingsVerdict.UNCERTAIN),
        ((SavingsVerdict.UNCERTAIN, SavingsVerdict.UNCERTAIN), -1.0, 0.0, SavingsVerdict.UNCERTAIN),
        ((SavingsVerdict.LOSS,), -2.0, -1.0, SavingsVerdict.LOSS),
        ((SavingsVerdict.LOSS, SavingsVerdict.SAVING), -2.0, 1.0, SavingsVerdict.UNCERTAIN),
        ((SavingsVerdict.LOSS, SavingsVerdict.SAVING), 1.0, 2.0, SavingsVerdict.SAVING),
    ],
)
def test_jobs_together_have_a_verdict(
    verdicts: tuple[SavingsVerdict, ...], at_least: float | None, at_most: float | None, expected: SavingsVerdict
) -> None:
    """That of a single job is its own; sums decide for several."""
    assert total_verdict(verdicts, at_least, at_most) is expected


def test_advice_about_a_loss_is_to_keep_the_default_if_it_is_the_best() -> None:
    """Otherwise the search may still pay off; a batch size in use that costs less may be kept alone."""
    loss = _claim({64: [100.0] * 9}, wasted=50.0)
    (keep,) = advice(loss, "job", 64, in_use=64)
    assert keep.startswith("keep your default, 64: ")
    assert "`wattwise jobs pin job 64`" in keep
    for best in (32, None):
        (other,) = advice(loss, "job", 64, in_use=best)
        assert "keep" not in other
        assert other.endswith("so far: `wattwise jobs pin job 64` goes back to the default")
    cheaper = replace(loss, in_use=50.0, with_default=100.0, comparable=True)
    assert (
        "`wattwise jobs pause job` stops trials of other batch sizes than 32"
        in advice(cheaper, "job", 64, in_use=32)[0]
    )


def test_an_old_baseline_is_renewed() -> None:
    """After 100 deliveries without the default, where there is a claim."""
    many, few = _claim({64: [100.0] * 5, 32: [9.0]}), _claim({64: [100.0], 32: [9.0]})
    assert advice(many, "my job", 64, deliveries_since_default=99) == []
    (old,) = advice(many, "my job", 64, deliveries_since_default=100)
    assert "100 deliveries old" in old
    assert "`wattwise jobs baseline 'my job'`" in old
    assert advice(few, "my job", 64, deliveries_since_default=100) == []
