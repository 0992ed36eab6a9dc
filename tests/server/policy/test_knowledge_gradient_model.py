"""The knowledge gradient against its specification, the plain implementation in `reference`, one step at a time."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, reduce
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from wattwise_server.domain import Moments
from wattwise_server.policy.base import Choice
from wattwise_server.policy.knowledge_gradient import Constants
from wattwise_server.policy.knowledge_gradient.belief import Belief, belief
from wattwise_server.policy.knowledge_gradient.changes import Prediction, surprises
from wattwise_server.policy.knowledge_gradient.edges import edges
from wattwise_server.policy.knowledge_gradient.evidence import Evidence
from wattwise_server.policy.knowledge_gradient.expectation_propagation import infer
from wattwise_server.policy.knowledge_gradient.gaussian_processes import Mixture
from wattwise_server.policy.knowledge_gradient.model import model
from wattwise_server.policy.knowledge_gradient.state import Knowledge, read

from tests.server.policy.reference import unusual
from tests.server.policy.reference.changes import Prediction as Expected
from tests.server.policy.reference.edges import Edges
from tests.server.policy.reference.gaussians import Floats, Gaussian, Observation, density
from tests.server.policy.reference.gaussians import Mixture as Gaussians
from tests.server.policy.reference.job import QUADRATURE, C, Crash, Reference, Run, Told
from tests.server.policy.simulated import SimulatedJob

EXACT = 1e-4
"""Relative difference where the policy approximates nothing: grids and rounding."""

APPROXIMATE = 5e-3
"""The same of probabilities of a miss: the policy's P(Z > z) is off by up to 2e-4."""

ROUNDED = 0.06
"""Relative difference of costs in sentences, which have two or three digits."""

TAILS = 0.05
"""Difference of ln of a likelihood ratio: the policy's tails of Student's t are off by a few percent."""


def joules(text: str) -> float:
    """The number of a cost in a sentence."""
    number, unit = text.split()
    return float(number) * {"J": 1.0, "kJ": 1e3, "MJ": 1e6}[unit]


def missed(size: int, epochs: int, count: int = 1) -> Sequence[Run]:
    """Trials that missed the target."""
    return [Run(size, epochs, reached=False)] * count


def each_of(size: int, *epochs: int) -> Sequence[Run]:
    """Trials of one batch size that reached the target."""
    return [Run(size, each) for each in epochs]


ROUND = [Run(8, 35, 210), Run(16, 24, 160), Run(32, 20, 130), Run(64, 22, 110), Run(128, 40, 100)]
NOISY = [Run(32, 18, 99), Run(32, 23, 101), Run(16, 30, 120), Run(16, 24, 115), Run(16, 26, 125), Run(64, 40, 90)]
PAIRS = [Run(32, 20), Run(64, 22, 90)] * 6
LONG = [*PAIRS, *PAIRS]
CASES = {
    "one trial": Reference([Run(32, 20)]),
    "a trial of each batch size": Reference(ROUND),
    "noise": Reference(NOISY),
    "a law with a rise to the left": Reference([Run(8, 90), Run(16, 45), Run(32, 24), Run(64, 20), Run(128, 20)]),
    "no law": Reference([Run(8, 10), Run(16, 40), Run(32, 10), Run(64, 40), Run(128, 10)]),
    "one epoch": Reference([Run(32, 1, 50), Run(32, 1, 52), Run(64, 1, 20)], max_epochs=1),
    "two octaves": Reference([Run(8, 30), Run(32, 20, 60)], sizes=(8, 32)),
    "close together": Reference([Run(300, 20), Run(310, 22), Run(320, 19)], sizes=(300, 310, 320, 330)),
    "slow misses": Reference([Run(32, 20), *missed(64, 30), *missed(128, 45)]),
    "several misses": Reference([*NOISY, *missed(8, 50), *missed(8, 40)]),
    "a miss far beyond what was expected": Reference([*each_of(32, *[10] * 30), *missed(32, 150)]),
    "most batch sizes only miss": Reference(
        [Run(32, 20), *(Run(size, 30, reached=False) for size in (8, 16, 64, 128))], max_epochs=30
    ),
    "cheap crashes": Reference([Run(32, 20), Run(16, 30), Crash(32, 30), Crash(64, 1)]),
    "expensive crashes": Reference([Run(32, 20), Crash(32, 5000), Crash(16, 9000), Run(64, 20)]),
    "crashes without a cost": Reference([Run(32, 20), Crash(32, 0), Run(64, 20)]),
    "a prior that fits": Reference([Run(32, 20)], [Told(16, [20, 22]), Told(32, [19]), Told(64, [30])]),
    "a prior in doubt": Reference([Run(32, 20)], [Told(32, [14, 15]), Told(64, [12, 14, 11])]),
    "a wrong prior": Reference([Run(32, 60), Run(64, 70)], [Told(32, [10]), Told(64, [5])]),
    "a wrong prior without a trial of the default": Reference([Run(64, 60)], [Told(64, [10]), Told(16, [12, 12])]),
    "a prior with misses": Reference([Run(32, 20)], [Told(16, [], [50, 40]), Told(32, [18], [40])]),
    "a prior with many trials": Reference([Run(32, 20)], [Told(32, [22, 26, 18] * 4), Told(64, [15] * 9, [30])]),
    "a prior with more misses than are kept": Reference([Run(32, 20)], [Told(64, [25], [60] * 20)]),
    "a prior and an unlucky trial": Reference([Run(32, 20), Run(16, 70)], [Told(16, [20, 22]), Told(32, [19])]),
    "a miss of the best": Reference([*each_of(32, *[20] * 5), *missed(32, 100)]),
    "a slow miss of the best": Reference([*each_of(32, *[20, 30] * 4), *missed(32, 45)]),
    "misses of the best": Reference([*each_of(32, *[20] * 3), *missed(32, 150, 6)]),
    "misses of another one": Reference([*each_of(32, *[20] * 5), Run(16, 25), *missed(16, 90, 2)]),
    "slow misses of the best": Reference([*each_of(32, *[20] * 5), *missed(32, 24, 6)]),
    "misses of the best that may be slow": Reference([*each_of(32, 20, 30, 24, 30, 14), *missed(32, 32, 4)]),
    "stopping soon before the last epoch": Reference(
        [*ROUND, *(Run(size, 58, reached=False) for size in (16, 32, 64, 32))], max_epochs=58
    ),
    "no epoch to stop at": Reference([*each_of(32, *[20] * 5), *missed(32, 28)], max_epochs=28),
    "hundreds of epochs": Reference([*each_of(32, *[200] * 5), *missed(32, 1000, 2)], max_epochs=1000),
    "hundreds of epochs, more or less": Reference(
        [*each_of(32, *[240, 300] * 2), *missed(32, 400, 5)], max_epochs=3000
    ),
    "misses everywhere": Reference([*ROUND, *(Run(size, 150, reached=False) for size in (16, 32, 64, 32))]),
    "a late trial among others": Reference([*each_of(32, 20, 22, 20, 22), Run(16, 22), Run(32, 90), Run(32, 21)]),
    "a late trial alone": Reference([Run(32, 20), Run(64, 130), Run(128, 21)]),
    "a lucky trial": Reference([Run(32, 20), Run(64, 22), Run(32, 21), Run(64, 3), Run(64, 23)]),
    "two that contradict each other": Reference([Run(32, 20), Run(64, 22), Run(64, 90)]),
    "trials that are folded": Reference([*each_of(32, *(20, 22, 90, 19, 21, 20, 4, 18, 20, 22) * 2), Run(16, 30)]),
    "one miss among many": Reference([*each_of(32, *[20, 22, 19] * 4), *missed(32, 60), *each_of(32, 21, 21, 21)]),
    "misses on either side": Reference([Run(32, 20), *missed(8, 60), Run(64, 21), *missed(128, 60, 2), Run(16, 24)]),
    "an edge": Reference([Run(32, 20), Run(64, 20), *missed(128, 60), Run(64, 20), *missed(128, 60)]),
    "a gap": Reference([Run(16, 20), *missed(32, 60, 2), Run(64, 20), Run(64, 20)]),
    "misses that are folded": Reference([Run(32, 20), *missed(128, 60, 19), Run(32, 21)]),
    "a row of misses": Reference([*each_of(32, *[20] * 8), *missed(32, 60, 3)]),
    "misses before the first success": Reference([*missed(32, 60, 2), *missed(64, 60), Run(16, 20)]),
    "a window": Reference([*each_of(32, *[40] * 6), *each_of(16, 50, 50, 50), *each_of(32, *[20] * 8)], window=6),
    "a window with misses": Reference([*each_of(32, *[20] * 4), *missed(64, 60, 2), *each_of(32, 21, 22)], window=5),
    "more epochs than before": Reference([*LONG, *PAIRS, *each_of(32, *[50] * 6)]),
    "more epochs after a few trials": Reference([*PAIRS, *each_of(32, *[50] * 5)]),
    "fewer epochs than before": Reference([*LONG, *each_of(32, *[7] * 5)]),
    "fewer epochs at another batch size": Reference([*LONG, *each_of(64, *[7] * 5)]),
    "fewer epochs, and a miss": Reference([*LONG, *each_of(32, 7, 7, 7), *missed(32, 60)]),
    "broken": Reference([*LONG, *missed(32, 60, 3), Run(64, 22, 90), *missed(32, 60, 6), Run(64, 22, 90)]),
    "more epochs than the prior told, later": Reference(
        [*LONG, *PAIRS, *each_of(32, *[50] * 5)], [Told(32, [20, 21]), Told(64, [22])]
    ),
    "more expensive epochs": Reference([*LONG, *[Run(32, 20, 180)] * 5, Run(64, 22, 160)]),
    "slightly more expensive epochs": Reference([*LONG, *[Run(32, 20, 106)] * 10]),
    "more and cheaper epochs": Reference([*LONG, *[Run(64, 50, 40)] * 6]),
    "more epochs in trials that end in reverse": Reference([*LONG, *each_of(32, *[50] * 5)], at_once=5),
    "stopped trials that miss": Reference([*LONG, *missed(32, 44, 7), Run(32, 60)]),
    "stopped trials of which some reach the target": Reference(
        [*LONG, *each_of(32, 40, 41), *missed(32, 44, 2), Run(32, 42), *missed(32, 44, 2)]
    ),
    "trials without costs": Reference(
        [*LONG, *[Run(32, 20, 104)] * 2, *[Run(32, 20, 0)] * 3, Run(32, 20, 104), *[Run(32, 20, 180)] * 6]
    ),
    "many trials without costs": Reference([*PAIRS, Run(32, 20, 106), *[Run(32, 20, 0)] * 66, *[Run(32, 20, 130)] * 3]),
    "costs in doubt beyond a window": Reference([*PAIRS, *[Run(32, 20, 180)] * 8], window=7),
    "more epochs in reverse, in a window": Reference([*LONG, *PAIRS, *each_of(32, *[50] * 8)], window=12, at_once=6),
    "more misses than are kept": Reference([Run(64, 20), *[Run(32, 20), *missed(32, 60)] * 18, Run(64, 20)]),
    "more misses than are kept, at an edge": Reference([Run(32, 20), *[Run(32, 21), *missed(128, 60)] * 18]),
    "a window after a change": Reference([*LONG, *PAIRS, *each_of(32, *[50] * 7)], window=40),
}
SLOW = {
    "a window after a change",
    "broken",
    "costs in doubt beyond a window",
    "fewer epochs at another batch size",
    "fewer epochs than before",
    "many trials without costs",
    "misses that are folded",
    "more and cheaper epochs",
    "more epochs in reverse, in a window",
    "more epochs than before",
    "more epochs than the prior told, later",
    "more misses than are kept",
    "more misses than are kept, at an edge",
    "slightly more expensive epochs",
    "stopped trials of which some reach the target",
    "stopped trials that miss",
    "trials that are folded",
    "trials without costs",
}
EACH = [pytest.param(case, marks=pytest.mark.thorough) if case in SLOW else case for case in CASES]


@lru_cache
def job_of(case: str) -> SimulatedJob:
    """The job as the policy sees it."""
    return CASES[case].job()


def knowledge_of(case: str) -> Knowledge:
    """What the policy knows."""
    return read(job_of(case).search.notes)


def belief_of(case: str) -> Belief:
    """What it believes."""
    return belief_from(CASES[case].sizes, knowledge_of(case))


def belief_from(sizes: tuple[int, ...], knowledge: Knowledge) -> Belief:
    """The belief that follows from a state."""
    return belief(model(sizes, C), knowledge.evidence, knowledge.prior)


@pytest.mark.parametrize("case", EACH, scope="module")
def test_belief(case: str) -> None:
    """The moments of ln E and ln c, the rates, and which batch sizes always miss are those of the formulas."""
    expected, found = CASES[case].belief, belief_of(case)
    deviations = np.sqrt(np.outer(np.diag(expected.epochs.cov), np.diag(expected.epochs.cov)))
    assert found.epochs == pytest.approx(expected.epochs.mean, abs=EXACT)
    assert found.epochs_cov / deviations == pytest.approx(expected.epochs.cov / deviations, abs=EXACT)
    assert found.cost == pytest.approx(expected.cost.mean, abs=EXACT)
    assert found.cost_cov == pytest.approx(expected.cost.cov, rel=EXACT, abs=1e-8)
    assert found.rates.noise == pytest.approx(expected.rates.noise, rel=EXACT)
    assert found.rates[1:] == pytest.approx(expected.rates[1:], rel=EXACT)
    assert found.cost_noise == pytest.approx(expected.cost_noise, rel=EXACT)
    assert found.freedom == pytest.approx(expected.freedom)
    assert found.edges.always == pytest.approx(expected.edges.always, abs=EXACT)
    assert found.unlucky == pytest.approx(expected.unlucky, abs=EXACT)
    assert found.misfit == pytest.approx(expected.misfit, rel=EXACT)
    assert found.prior_trust == pytest.approx(expected.prior_trust, rel=EXACT)


@pytest.mark.parametrize("case", EACH, scope="module")
def test_values(case: str) -> None:
    """Expected costs, their variances, failure rates, and the bound of all but the best are those of the formulas."""
    expected, job = CASES[case], job_of(case)
    belief, beliefs = expected.belief, job.policy.belief(job.spec, job.search)
    assert [-each.mean for each in beliefs] == pytest.approx(belief.expected, rel=EXACT)
    spread = np.expm1([belief.variance, belief.rates.noise]) * belief.expected**2
    assert [1 / each.precision for each in beliefs] == pytest.approx(spread[0], rel=2 * EXACT)
    assert [1 / each.reward_precision for each in beliefs] == pytest.approx(spread[1], rel=2 * EXACT)
    assert [each.failure_rate for each in beliefs] == pytest.approx(expected.crashes)
    assert [each.observations for each in beliefs] == (belief.reached + belief.missed).tolist()
    assert [each.expected_cost for each in beliefs] == pytest.approx(expected.model, rel=APPROXIMATE)
    deviations = np.sqrt(np.expm1(belief.variance)) * expected.model
    assert [each.deviation for each in beliefs] == pytest.approx(deviations, rel=APPROXIMATE)
    others = [size for place, size in enumerate(expected.sizes) if place != expected.best]
    bounds = [job.policy.bound(job.spec, job.search, size) for size in others]
    assert bounds == pytest.approx([expected.limit] * len(others), rel=EXACT)


@pytest.mark.parametrize("case", EACH, scope="module")
def test_stop_of_the_best_batch_size(case: str) -> None:
    """No other epoch to stop a trial of the best batch size saves a percent; no bound means the last one."""
    expected, job = CASES[case], job_of(case)
    found = job.policy.bound(job.spec, job.search, expected.sizes[expected.best])
    if found is None:
        assert not expected.stops or expected.stops[-1] == min(expected.stops)
        return
    epochs = found / math.exp(expected.belief.cost.mean[expected.best]) - 0.5
    assert epochs == pytest.approx(round(epochs), abs=0.01)
    stop = round(epochs) - expected.first_stop
    assert 0 <= stop < len(expected.stops) - 1
    assert expected.stops[stop] <= 1.01 * min(expected.stops)


@pytest.mark.parametrize("case", EACH, scope="module")
def test_luck_and_changes(case: str) -> None:
    """The row of misses, the sums of the detectors, and the changes that they have found are those of the formulas."""
    expected, found = CASES[case].known, knowledge_of(case)
    assert found.luck == pytest.approx(expected.luck, rel=2 * APPROXIMATE)
    assert list(found.misses) == list(expected.misses)
    assert (found.trials, found.default_due) == (expected.trials, expected.default_due)
    for sums, of_formulas in ((found.epochs_sums, expected.epochs_sums), (found.cost_sums, expected.cost_sums)):
        assert [each.value for each in sums] == pytest.approx([each.value for each in of_formulas], abs=TAILS)
        rising = [
            (each.trials, other.count) for each, other in zip(sums, of_formulas, strict=True) if other.value > TAILS
        ]
        assert all(count == other for count, other in rising)
    assert [each.result.number for each in found.recent] == [each.seen.number for each in expected.recent]
    assert [change._replace(factor=0) for change in found.changes] == [
        change._replace(factor=0) for change in expected.changes
    ]
    assert list(found.news) == list(expected.news)
    assert [change.factor for change in found.changes] == pytest.approx([change.factor for change in expected.changes])


@pytest.mark.parametrize("case", EACH, scope="module")
def test_choice(case: str) -> None:
    """The next batch size, the news, and the numbers of a trial that pays off, are those of the formulas."""
    expected, choice = CASES[case], job_of(case).choose()
    assert isinstance(choice, Choice)
    assert choice.batch_size in expected.choices
    changes = [change for change in knowledge_of(case).changes if change.quantity in expected.known.news]
    assert choice.reason.startswith("; ".join(change.message for change in changes))
    assert choice.reason.count("no longer count") == len(changes)
    pattern = (
        r"trying it (?:(\d+) times )?is expected to cost (.*), (.*) (more|less) than training with (\d+), .*"
        r"expected to save (.*) over the next (\d+) deliveries"
    )
    if found := re.search(pattern, choice.reason):
        trials, place = int(found[1] or 1), expected.sizes.index(choice.batch_size)
        price, best = trials * expected.price[place], trials * expected.price[expected.best]
        assert joules(found[2]) == pytest.approx(price, rel=ROUNDED)
        assert joules(found[3]) == pytest.approx(abs(price - best), rel=ROUNDED, abs=APPROXIMATE * price)
        assert found[4] == ("more" if price >= best else "less")
        assert int(found[5]) == expected.sizes[expected.best]
        worth = [expected.deliveries * expected.gain(each, trials) for each in range(len(expected.sizes))]
        assert joules(found[6]) == pytest.approx(worth[place], rel=ROUNDED, abs=2 * QUADRATURE * max(worth))
        assert int(found[7]) == pytest.approx(expected.deliveries, abs=0.51)


CHOICES = {
    "two of three": Reference([Run(64, 18, 150), Run(16, 14, 200), Run(64, 15, 150)]),
    "far apart": Reference([Run(64, 16, 150), Run(8, 15, 240), Run(64, 36, 100)]),
    "all but one": Reference([Run(16, 11, 240), Run(32, 16, 180), Run(128, 33, 90), Run(16, 12, 160), Run(8, 32, 360)]),
    "a noisy one": Reference(
        [Run(16, 20, 240), Run(32, 16, 150), Run(16, 11, 160), Run(16, 32, 200), Run(64, 42, 125)]
    ),
    "small ones": Reference([Run(16, 12, 200), Run(64, 16, 125), Run(8, 21, 240), Run(8, 16, 300)]),
    "settled": Reference([*ROUND, *[Run(64, 22, 110), Run(64, 23, 110)] * 6]),
    "an insurance": Reference([Run(32, 20), Run(64, 40), *each_of(32, *[20] * 30), Run(16, 40)]),
    "one running": Reference([Run(32, 20)], running=[16]),
    "two running": Reference([Run(32, 20), Run(64, 18, 90)], running=[16, 128]),
    "the best running": Reference([Run(32, 20), Run(64, 18, 90)], running=[64, 64, 64]),
    "a miss, and one running": Reference([Run(32, 20), Run(64, 21), *missed(128, 60), Run(64, 20)], running=[128]),
    "a row of misses, and one running": Reference([*each_of(32, *[20] * 8), *missed(32, 60, 3)], running=[64]),
    "first running": Reference([], running=[32]),
    "first two running": Reference([], running=[32, 64]),
    "first three running": Reference([], running=[32, 64, 16]),
    "first running twice": Reference([], running=[32, 32]),
    "first five running, and one missed": Reference([*missed(32, 60)], running=[32, 32, 64, 32, 16]),
    "first running, and a neighbour missed": Reference([*missed(64, 60)], running=[32, 32]),
    "first running, and one failed": Reference([Crash(32, 0)], running=[32, 32, 64]),
    "first running, of many": Reference([], running=[128], sizes=(16, 32, 64, 128, 256, 512, 1024)),
    "first running, with a prior": Reference([], [Told(64, [10]), Told(32, [14, 12])], running=[64], best_told=64),
    "first running, with a prior that missed": Reference([], [Told(16, [], [40, 50])], running=[32]),
}


@pytest.mark.parametrize("case", CHOICES)
def test_choice_beside_running_trials(case: str) -> None:
    """The next batch size is the one whose trial costs least less its worth, given what running trials will teach."""
    choice = CHOICES[case].job().choose()
    assert isinstance(choice, Choice)
    assert choice.batch_size in CHOICES[case].choices


@pytest.mark.parametrize("case", ["noise", "one miss among many", "more epochs than before"])
def test_window_that_holds_all_trials(case: str) -> None:
    """A window that is larger than the number of trials changes no belief, whether or not the epochs have changed."""
    job = replace(CASES[case], trials=[*CASES[case].trials, CASES[case].trials[-1]])
    here, found = (belief_from(job.sizes, read(each.job().search.notes)) for each in (job, replace(job, window=500)))
    assert found.mean == pytest.approx(here.mean, abs=1e-9)
    assert found.variance == pytest.approx(here.variance, rel=1e-6)


# Parts


def test_edge_by_hand() -> None:
    """Each case is weighed for two batch sizes one and two octaves above the best, the first of which missed."""
    constants = Constants(edge=math.log(2), apart=0.0)
    found = edges(np.array([3.0, 4.0, 5.0]), np.array([1.0, 0, 0]), np.log([1.0, 0.1, 1.0]), constants)
    # The edge comes in the first octave with 1/2, in the second with 1/4, and later with 1/4.
    total = 1 / 2 + 1 / 4 * 0.1 + 1 / 4 * 0.1
    assert found.always == pytest.approx([0, (1 / 2) / total, (1 / 2 + 1 / 4 * 0.1) / total])
    assert found.always_after(np.array([1]))[0] == pytest.approx([0, 0, 1 / 2])


chances = st.lists(st.floats(1e-6, 1.0), min_size=2, max_size=6)


@given(chances, st.data())
@settings(max_examples=60, deadline=None)
def test_edges_by_enumeration(chance: Sequence[float], data: st.DataObject) -> None:
    """Whatever has been seen, and after any further success, batch sizes always miss as enumeration tells."""
    count = len(chance)
    gaps = data.draw(st.lists(st.floats(0.1, 4), min_size=count, max_size=count))
    reached = data.draw(st.lists(st.booleans(), min_size=count, max_size=count).filter(any))
    # Where the target has been reached, misses tell nothing about edges.
    octaves, misses = np.cumsum(gaps), np.log(chance)
    found = edges(octaves, np.array(reached, float), misses, C)
    expected = Edges(octaves.tolist(), reached, misses.tolist(), C)
    assert found.always == pytest.approx(expected.always, abs=1e-9)
    after = found.always_after(np.arange(count))
    for place in range(count):
        assert after[place] == pytest.approx(expected.always_after(place), abs=1e-9)


X = np.array([3.0, 4.0, 5.0, 7.0])
CURVES = np.stack([0 * X, 0.5 * X, np.log(1 + 2 ** (X - 5))], axis=1)
WEIGHTS = np.array([0.5, 0.2, 0.3])
AMPLITUDES = np.array([0.2, 0.8])
KERNELS = np.stack([1.0 + a**2 * np.exp(-((X[:, None] - X) ** 2) / 4) + 0.01 * np.eye(4) for a in AMPLITUDES])
SMALL = Mixture(CURVES, WEIGHTS, KERNELS, AMPLITUDES, 2.0)
SMALL_PARTS = Gaussians(
    [
        Gaussian(math.log(weight / 2), 2.0 + CURVES[:, curve], kernel, amplitude**2)
        for curve, weight in enumerate(WEIGHTS)
        for kernel, amplitude in zip(KERNELS, AMPLITUDES, strict=True)
    ]
)
"""A small mixture, and the same as Gaussians."""

values = st.tuples(st.integers(0, 3), st.floats(0, 6), st.floats(0.01, 2))


@given(st.lists(values, min_size=1, max_size=5))
@settings(max_examples=60, deadline=None)
def test_regression(observed: Sequence[tuple[int, float, float]]) -> None:
    """A mixture after observations has the moments, likelihood and misfit of Gaussians conditioned one by one."""
    found = SMALL.posterior(*zip(*observed, strict=True))
    expected = SMALL_PARTS.given([Observation(*each) for each in observed])
    assert found.mean == pytest.approx(expected.mean, abs=1e-7)
    assert found.cov == pytest.approx(expected.cov, abs=1e-7)
    assert found.log_likelihood == pytest.approx(expected.log_weight, abs=1e-6)
    assert found.misfit == pytest.approx(expected.amplitude2 / SMALL_PARTS.amplitude2)


@given(st.lists(values, min_size=1, max_size=5))
@settings(max_examples=60, deadline=None)
def test_left_out_is_what_the_others_say(observed: Sequence[tuple[int, float, float]]) -> None:
    """What is left without an observation is the belief that follows from the other ones."""
    left_out = SMALL.posterior(*zip(*observed, strict=True), leave_out=True).left_out
    assert left_out is not None
    for index, (place, _, _) in enumerate(observed):
        others = SMALL_PARTS.given([Observation(*each) for other, each in enumerate(observed) if other != index])
        assert left_out.mean[index] == pytest.approx(others.mean[place], abs=1e-6)
        assert left_out.variance[index] == pytest.approx(others.cov[place, place], rel=1e-5, abs=1e-6)


counts = st.lists(st.integers(1, 200), max_size=4)


@given(st.lists(st.tuples(counts, counts), min_size=4, max_size=4), st.sampled_from([1.0, 0.8]))
@settings(max_examples=40, deadline=None)
def test_sites_have_the_moments_of_integrals(
    trials: Sequence[tuple[Sequence[int], Sequence[int]]], weight: float
) -> None:
    """Any trials teach what expectation propagation with integrated moments does: beliefs, rates, misses."""
    assume(any(reached or late for reached, late in trials))
    source, rows = list[Evidence](), list[unusual.Row]()
    for place, (reached, late) in enumerate(trials):
        logs, longer = [math.log(epochs) for epochs in reached], [math.log(epochs + 0.5) for epochs in late]
        if weight == 1.0:
            source.append(Evidence(tuple(reached), tuple(late)))
            row = unusual.Row(place, logs, longer)
        else:
            # Of prior jobs, only the moments of the trials that reached the target are known.
            source.append(Evidence((), tuple(late), earlier=reduce(Moments.add, logs, Moments()), weight=weight))
            row = unusual.Row(place, (), longer, logs, weight=weight)
        rows += [row] if reached or late else []
    found, expected = infer(SMALL, X, [source], C, weigh=True), unusual.learned(SMALL_PARTS, X.tolist(), rows, C)
    assert found.fit.mean == pytest.approx(expected.fit.mean, abs=2e-3)
    assert found.fit.cov.diagonal() == pytest.approx(np.diag(expected.fit.cov), rel=5e-3)
    assert found.rates.noise == pytest.approx(expected.rates.noise, rel=2e-3)
    assert found.rates[1:] == pytest.approx(expected.rates[1:], rel=2e-3)
    assert found.misses.logs == pytest.approx(expected.misses.logs, abs=5e-3)
    assert found.misses.only.tolist() == expected.misses.only
    assert found.unlucky == pytest.approx(expected.unlucky, abs=5e-3)
    # The constant of each density is left out.
    left_out = 0.5 * math.log(2 * math.pi) * sum(row.weight * row.num_reached for row in rows)
    assert found.log_likelihood == pytest.approx(expected.log_likelihood + left_out, abs=2e-3)


SURE = Constants(noise_weight=1e9, unusual_weight=1e9, reaches_weight=1e9)
"""Constants with which no trial changes the rates."""


@pytest.mark.parametrize("epochs", [60, 400, 3000])
def test_one_trial_teaches_what_bayes_says(epochs: int) -> None:
    """The belief after a single trial that looks unusual has the moments of the exact posterior."""
    one = Mixture(np.zeros((1, 1)), np.ones(1), np.array([[[1.0]]]), np.ones(1), math.log(20))
    found = infer(one, np.zeros(1), [[Evidence((epochs,))]], SURE)
    noise, e, log = float(found.rates.noise[0]), np.linspace(-10, 20, 100_001), math.log(epochs)
    far = SURE.unusual * SURE.reaches * density(log, e, noise + SURE.unusual_spread**2)
    posterior = density(e, math.log(20), 1.0) * ((1 - SURE.unusual) * density(log, e, noise) + far)
    posterior /= posterior.sum()
    mean = float(posterior @ e)
    assert found.fit.mean[0] == pytest.approx(mean, abs=1e-4)
    # No trial makes the belief vaguer: its Gaussian has a least precision.
    variance = min(float(posterior @ (e - mean) ** 2), 1 / (1 + unusual.LEAST))
    assert found.fit.cov[0, 0] == pytest.approx(variance, rel=1e-3)


# The whole posterior


@dataclass(frozen=True)
class Exact:
    """The moments of e after some trials, by importance sampling: no approximation, and rates that are known.

    Attributes:
        evidence: The trials, by batch size.
        noise: s².
        constants: The constants.
    """

    evidence: Sequence[Evidence]
    noise: float
    constants: Constants

    @cached_property
    def samples(self) -> Floats:
        """Beliefs about e before any trial (m, n)."""
        rng, count = np.random.default_rng(1), 40_000
        drawn = [
            rng.multivariate_normal(part.mean, part.cov, round(count * share))
            for part, share in zip(SMALL_PARTS.parts, SMALL_PARTS.shares, strict=True)
        ]
        return np.concatenate(drawn)

    @cached_property
    def cases(self) -> Floats:
        """Probability that a case of edges applies, times the likelihood of the trials in it (m, cases)."""
        rates = unusual.Rates(np.full(len(X), self.noise), self.constants.unusual, self.constants.reaches)
        likelihood, missing = np.ones(len(self.samples)), list[Floats]()
        for place, known in enumerate(self.evidence):
            e, far = self.samples[:, place], self.noise + self.constants.unusual_spread**2
            for log in map(math.log, known.reached):
                late = rates.unusual * rates.reaches * density(log, e, far)
                likelihood = likelihood * ((1 - rates.unusual) * density(log, e, self.noise) + late)
            chances = [unusual.later(math.log(n + 0.5) - e, self.noise, rates, self.constants) for n in known.missed]
            missing.append(reduce(np.multiply, chances, np.ones(len(e))))
        found = [
            weight * reduce(np.multiply, [1.0 if always else each for always, each in zip(flags, missing, strict=True)])
            for weight, flags in self.edges.cases()
        ]
        return np.stack([each * likelihood for each in found], axis=1)

    @property
    def edges(self) -> Edges:
        """What may always miss, before the misses."""
        reached = [known.num_reached > 0 for known in self.evidence]
        return Edges(X.tolist(), reached, [0.0] * len(X), self.constants)

    @cached_property
    def always(self) -> Floats:
        """The probability that each batch size always misses the target."""
        flags = np.array([flags for _, flags in self.edges.cases()])
        return np.asarray(self.cases.sum(0) @ flags / self.cases.sum())

    @cached_property
    def mean(self) -> Floats:
        """Mean of e (n,)."""
        return np.asarray(np.average(self.samples, axis=0, weights=self.cases.sum(1)))

    @cached_property
    def deviation(self) -> Floats:
        """Standard deviation of e (n,)."""
        return np.sqrt(np.average((self.samples - self.mean) ** 2, axis=0, weights=self.cases.sum(1)))


class Posterior(NamedTuple):
    """Trials of three batch sizes after the first, and what may be off: the means and the deviations of e, and edges.

    The first two are in standard deviations of e.
    """

    trials: Sequence[Evidence]
    mean: float
    deviation: float
    always: float = 0.0


POSTERIORS = {
    "usual trials and a late one": Posterior([Evidence((20, 22, 90)), Evidence((25,)), Evidence()], 0.1, 0.1),
    # One of them is unusual: the exact posterior has two modes.
    "two that contradict each other": Posterior([Evidence((12,)), Evidence((20, 80)), Evidence()], 0.15, 0.4),
    "misses of one that reaches it": Posterior([Evidence((20, 24), (60, 60)), Evidence((30,)), Evidence()], 0.1, 0.1),
    "a miss beside": Posterior([Evidence((20, 21)), Evidence((), (40,)), Evidence()], 0.5, 0.2, 0.05),
    "misses at an edge": Posterior([Evidence((20, 22)), Evidence((24,)), Evidence((), (60, 60))], 0.5, 0.1, 0.05),
}


@pytest.mark.parametrize("case", POSTERIORS)
def test_belief_is_close_to_the_exact_posterior(case: str) -> None:
    """Expectation propagation has nearly the moments of the exact posterior, and the probabilities of edges."""
    trials, of_mean, of_deviation, of_always = POSTERIORS[case]
    evidence = [Evidence(), *trials]
    found = infer(SMALL, X, [evidence], SURE)
    exact = Exact(evidence, float(found.rates.noise[0]), SURE)
    assert (found.fit.mean - exact.mean) / exact.deviation == pytest.approx(np.zeros(len(X)), abs=of_mean)
    assert np.sqrt(found.fit.cov.diagonal()) / exact.deviation == pytest.approx(np.ones(len(X)), abs=of_deviation)
    reached = np.array([known.num_reached for known in evidence], float)
    assert edges(X, reached, found.misses.logs, SURE).always == pytest.approx(exact.always, abs=of_always + EXACT)


predictions = st.builds(
    Expected,
    st.just(0.0),
    st.floats(1e-4, 1),
    st.floats(C.noise_weight, 60),
    st.floats(0, 0.9),
    st.floats(0.01, 0.1),
    st.floats(0.5, 1.5),
    st.floats(0.3, 1.5),
    st.floats(0.2, 1),
    st.floats(0, 0.9),
)


@given(st.floats(-3, 3), st.booleans(), predictions)
@settings(max_examples=100, deadline=None)
def test_likelihood_ratios(error: float, reached: bool, expected: Expected) -> None:
    """The likelihood ratios of the alternatives are those of Student's t, integrated numerically."""
    _, variance, freedom, never, odd, spread, jump, jump_spread, broken = tuple(expected)
    prediction = Prediction(variance, freedom, never, odd, spread**2, jump, jump_spread**2, broken)
    found = np.clip(surprises(error, reached, prediction, C), -5.0, C.most)
    assert found == pytest.approx(expected.ratios(error, reached, C), abs=1e-6 if reached else 4 * TAILS)


def test_rates_after_a_trial_that_is_surely_unusual() -> None:
    """One unusual trial among ten raises u and w as if their priors were earlier trials."""
    one = Mixture(np.zeros((1, 1)), np.ones(1), np.array([[[1.0]]]), np.ones(1), math.log(20))
    rates = infer(one, np.zeros(1), [[Evidence((20, 22, 19, 18, 21, 20, 19, 23, 20, 400))]], C).rates
    # The other nine are a little unusual as well.
    assert rates.unusual == pytest.approx((C.unusual_weight * C.unusual + 1) / (C.unusual_weight + 10), rel=0.15)
    assert rates.reaches == pytest.approx((C.reaches_weight * C.reaches + 1) / (C.reaches_weight + 1), rel=0.05)
