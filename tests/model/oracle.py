"""A job as the contract has it, without the server's code: the walk, failures, bounds, the window and the arms.

Of the knowledge-gradient policy it has the rules of every policy: what may be chosen, what failures mean, and what a
verdict follows from. It takes the bound itself from the server's answers.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import NamedTuple

from wattwise import v1

from tests.jobs import flat_of
from tests.model.calls import MismatchError, same

END = {name.removeprefix("END_REASON_"): value for name, value in v1.EndReason.items()}
REASON = {value: name for name, value in END.items()}
ROLE = {value: name.removeprefix("PRUNING_GTS_ROLE_") for name, value in v1.PruningGtsRole.items()}
ORIGIN = {value: name.removeprefix("TRIAL_ORIGIN_") for name, value in v1.TrialOrigin.items()}
STATUS = {value: name.removeprefix("TRIAL_STATUS_") for name, value in v1.TrialStatus.items()}
STATE = {value: name.removeprefix("BATCH_SIZE_STATUS_") for name, value in v1.BatchSizeStatus.items()}
_KEPT = 13
"""Failures in a row that are told apart: the pause is then 1024 trials."""


class Row(NamedTuple):
    """A measurement."""

    epoch: int
    seconds: float
    joules: float
    metric: float

    def repeats(self, other: Row) -> bool:
        """Whether both are the same, NaN included."""
        return repr(self) == repr(other)


class Verdict(NamedTuple):
    """The judgement of a measurement."""

    cost: float
    bound: float | None
    converged: bool
    reached: bool
    reason: str | None


@dataclass(eq=False)
class ModelTrial:
    """A trial; its lease began between `lo` and `hi`."""

    number: int
    size: int
    kind: str
    round: int
    request: str
    status: str = "RUNNING"
    reason: str = "UNSPECIFIED"
    last: Row | None = None
    rows: list[Row] = field(default_factory=list)
    cost: float | None = None
    bound: float | None = None
    converged: bool = False
    reached: bool = False
    lo: float = field(default_factory=time.monotonic)
    hi: float = field(default_factory=time.monotonic)
    decision: v1.Decision | None = None

    @property
    def running(self) -> bool:
        """Whether it has not ended."""
        return self.status == "RUNNING"

    @property
    def lost(self) -> bool:
        """Whether its lease expired."""
        return self.reason == "LOST"


class ExhaustedError(Exception):
    """No batch size is left."""


class Oracle:
    """One job.

    Attributes:
        told: The bound that the server told last, for a policy whose bounds the oracle does not know.
    """

    def __init__(self, spec: v1.JobSpec, ask: Callable[[ModelTrial], v1.Decision | None]) -> None:
        """`ask` returns the server's answer to a trial that was decided meanwhile, None to any other."""
        self.job, self.spec = spec, flat_of(spec)
        self.ask = ask
        self.knows_bounds = self.spec.policy != "knowledge_gradient"
        self.told: float | None = None
        self.sizes = sorted(spec.batch_sizes)
        self.pruning = self.spec.policy == "pruning_gts" and self.spec.num_pruning_rounds > 0
        self.round, self.default = 0, spec.default_batch_size
        self.pruned: set[int] = set()
        self.excluded: set[int] = set()
        self.result: dict[int, float] = {}
        self.fails: dict[int, list[int]] = {size: [] for size in self.sizes}
        self.memory = dict.fromkeys(self.sizes, 0)
        self.slot: int | None = None
        self.min_cost: float | None = None
        self.min_size: int | None = None
        self.stops = 0
        self.doubted: int | None = None
        self.trials: list[ModelTrial] = []
        self.counted: list[ModelTrial] = []

    # What may be chosen.

    @property
    def surviving(self) -> list[int]:
        """Neither pruned nor excluded."""
        return [size for size in self.sizes if size not in self.pruned | self.excluded]

    def _of(self, size: int) -> list[ModelTrial]:
        return [trial for trial in self.counted if trial.size == size]

    def _running(self, size: int) -> int:
        return sum(trial.running and trial.size == size for trial in self.trials)

    def _failing(self, size: int) -> bool:
        return len(self.fails[size]) >= 3

    def _due(self, size: int) -> int:
        if not self._failing(size):
            return 0
        further = len(self.fails[size]) - 3
        return self.fails[size][-1] + (min(2**further, 1024) if further else len(self.surviving) - 1)

    def aside(self, size: int) -> bool:
        """Whether a batch size is set aside for the next trial."""
        if not self._failing(size):
            return False
        if self._running(size):
            return True
        if self.pruning and len(self.fails[size]) == 3:
            return any(other not in self.result and not self._failing(other) for other in self.surviving)
        return len(self.trials) + 1 <= self._due(size)

    def _walk(self) -> list[int]:
        down = [size for size in reversed(self.surviving) if size <= self.default]
        return down + [size for size in self.surviving if size > self.default]

    def step(self) -> int | None:
        """The next exploration."""
        waiting = [size for size in self._walk() if size not in self.result]
        ready = [size for size in waiting if not self.aside(size)]
        if ready or not waiting:
            return ready[0] if ready else None
        return self._first_due(waiting)

    def choice(self) -> tuple[str, set[int]]:
        """The kind of the next trial, and the batch sizes that it may have."""
        if not self.surviving:
            raise ExhaustedError
        able = self._able()
        if not self.pruning:
            starts = self.spec.policy != "pruning_gts" and not self.trials
            if starts and self.spec.default_batch_size in able:
                return "SEARCH", {self.spec.default_batch_size}
            kind = "BANDIT" if self.spec.policy == "pruning_gts" else "SEARCH"
            if not self.knows_bounds:
                return kind, able
            new = {size for size in able if len(self._of(size)) < self.spec.num_explorations}
            if not new and not any(trial.converged for size in able for trial in self._of(size)):
                # A miss never makes an arm look better than one without any.
                new = {size for size in able if not self._of(size)}
            return kind, new or able
        step = self.step()
        if self.slot is None:
            assert step is not None
            return "EXPLORATION", {step}
        return "CONCURRENT", self._concurrent(able, step)

    def _first_due(self, sizes: list[int]) -> int:
        return min(sizes, key=lambda s: (self._running(s) > 0, self._due(s), abs(s - self.default), s))

    def _able(self) -> set[int]:
        """What may be chosen; if all that survive are set aside, the one that is due first."""
        able = {size for size in self.surviving if not self.aside(size)}
        return able or {self._first_due(self.surviving)}

    def _concurrent(self, able: set[int], step: int | None) -> set[int]:
        if self.min_size is not None and self.min_size in able:
            return {self.min_size}
        converged = {size for size in able if any(trial.converged for trial in self._of(size))}
        if converged:
            return converged
        default = self.spec.default_batch_size
        if default in able:
            return {default}
        return {step} if step is not None and step in able else able

    # What a trial costs, and when it is stopped.

    def price(self, row: Row) -> float:
        """The cost in joules."""
        eta = self.spec.eta_knob
        return float(eta * row.joules + (1 - eta) * self.spec.max_power_watts * row.seconds)

    def limit(self, size: int) -> float | None:
        """The bound of a running trial."""
        if not self.knows_bounds:
            return self.told
        if self.spec.beta_knob is None or self.min_cost is None or size == self.min_size:
            return None
        return float(self.spec.beta_knob * self.min_cost * 2.0 ** max(0, self.stops - 1))

    def hear(self, decision: v1.Decision) -> None:
        """The answer to a trial has its bound, of which some things hold for every policy."""
        self.told = decision.cost_bound if decision.HasField("cost_bound") else None
        if self.knows_bounds or self.told is None:
            return
        same(self.spec.beta_knob is None, False, "a bound although early stopping is off")
        same(any(other.reached for other in self.counted), True, "a bound before a trial has reached the target")

    def judge(self, trial: ModelTrial, row: Row) -> Verdict:
        """The verdict on a measurement."""
        cost, bound, target = self.price(row), self.limit(trial.size), self.spec.target_metric
        reason: str | None
        good = row.metric >= target if self.spec.higher_is_better else row.metric <= target
        expensive = bound is not None and cost > bound
        if expensive:
            reason = "COST_BOUND"
        elif good:
            reason = "TARGET_REACHED"
        else:
            reason = "MAX_EPOCHS" if row.epoch >= self.spec.max_epochs else None
        return Verdict(cost, bound, good and not expensive, good, reason)

    # Events.

    def dispatch(self, number: int, size: int, kind: str, request: str) -> ModelTrial:
        """A trial was dispatched."""
        trial = ModelTrial(number, size, kind, self.round, request)
        self.trials.append(trial)
        if kind == "EXPLORATION":
            self.slot = number
        self._settle()
        return trial

    def finish(self, trial: ModelTrial, verdict: Verdict) -> None:
        """A trial was decided."""
        trial.cost, trial.bound, trial.converged, trial.reached = verdict[:4]
        trial.reason, trial.status = str(verdict.reason), "DECIDED"
        self.fails[trial.size] = []
        doubtful = trial.converged and self._doubtful(trial)
        if not doubtful:
            self.counted.append(trial)
        self.memory = {size: 0 if size <= trial.size else count for size, count in self.memory.items()}
        self._exclude()
        if doubtful:
            self.slot = None if self.slot == trial.number else self.slot
        elif trial.converged:
            self.stops = 0
        elif trial.kind in ("SEARCH", "BANDIT") and trial.reason == "COST_BOUND":
            self.stops += 1
        if self.pruning and self.slot == trial.number:
            self._explored(trial)
        self._settle()

    def _doubtful(self, trial: ModelTrial) -> bool:
        """Whether a delivery does not count: it is far below the usual cost, and the first one of its batch size."""
        cost, last = trial.cost or 0.0, trial.last
        usual = [other.cost or 0.0 for other in self._counting(trial.size) if other.converged]
        found = (
            cost > 0
            and bool(usual)
            and cost < 0.1 * sum(usual) / len(usual)
            and cost < 0.5 * min(filter(None, usual), default=math.inf)
        )
        if not found and last is not None and last.epoch == 1 and self.min_cost is not None and cost < self.min_cost:
            top = 1 if self.spec.target_metric <= 1 else 100
            others = [other.last.epoch for other in self.counted if other.reached and other.last]
            found = last.metric == (top if self.spec.higher_is_better else 0) and min(others) > 1
        if found and self.doubted == trial.size:
            self.doubted = None
            return False
        self.doubted = trial.size if found else self.doubted
        return found

    def _exclude(self) -> None:
        """What ran out of memory is out with all larger ones; twice where a trial was decided before."""
        fitted = max((trial.size for trial in self.counted), default=0)
        out = (s for s in self.sizes if self.memory[s] and self._out_of_memory(s) > (s <= fitted))
        least = min(out, default=None)
        self.excluded = {size for size in self.sizes if least is not None and size >= least}

    def _out_of_memory(self, size: int) -> int:
        return sum(count for smaller, count in self.memory.items() if smaller <= size)

    def _find_cheapest(self) -> None:
        """The cheapest converged cost of what may be chosen; of what keeps failing only if there is no other."""
        known = {size: [t.cost for t in self._counting(size) if t.converged and t.cost] for size in self.surviving}
        least = {size: min(costs) for size, costs in known.items() if costs}
        least = {size: cost for size, cost in least.items() if not self._failing(size)} or least
        ties = [size for size, cost in least.items() if cost == min(least.values())]
        if self.min_size not in ties:
            self.min_size = min(ties, default=None)
        self.min_cost = None if self.min_size is None else least[self.min_size]

    def _explored(self, trial: ModelTrial) -> None:
        self.slot = None
        if trial.converged:
            self.result[trial.size] = trial.cost or 0.0
            return
        down = trial.size <= self.default
        for size in self.sizes:
            beyond = size < trial.size if down else size > trial.size
            if size == trial.size or (beyond and size not in self.result):
                self.pruned.add(size)

    def _settle(self) -> None:
        """Finds what is cheapest, moves an excluded default, and ends the round if nothing may be tried in it now."""
        self._find_cheapest()
        if not self.pruning:
            return
        smaller = [size for size in self.surviving if size < self.default]
        if self.default in self.excluded and smaller:
            self.default = max(smaller)
        done = [size for size in self._walk() if size in self.result]
        ready = [size for size in self._walk() if size not in self.result and not self.aside(size)]
        if self.slot is not None or ready or not done:
            return
        self.default = min(done, key=lambda size: self.result[size] or math.inf)
        self.result = {}
        self.round += 1
        self.pruning = self.round < self.spec.num_pruning_rounds

    def stop_expensive(self) -> None:
        """Stops the running trials above their bound."""
        for trial in self.trials:
            if trial.running and trial.last is not None:
                if not self.knows_bounds:
                    answer = self.ask(trial)
                    if answer is None:
                        continue
                    self.hear(answer)
                verdict = self.judge(trial, trial.last)
                if verdict.reason == "COST_BOUND":
                    self.finish(trial, verdict)

    def fail(self, trial: ModelTrial, reason: str) -> None:
        """A trial was ended by its trainer, or lost."""
        if trial.last is not None:
            trial.cost, trial.bound = self.judge(trial, trial.last)[:2]
        trial.status, trial.reason = "INTERRUPTED" if reason in ("PREEMPTED", "LOST") else "FAILED", reason
        if reason != "PREEMPTED":
            self.fails[trial.size] = sorted([*self.fails[trial.size], trial.number])[-_KEPT:]
        if reason == "OUT_OF_MEMORY":
            self.memory[trial.size] += 1
            self._exclude()
        if self.slot == trial.number:
            self.slot = None
        self._settle()

    def revive(self, trial: ModelTrial) -> None:
        """A lost or preempted trial goes on."""
        if trial.number in self.fails[trial.size]:
            self.fails[trial.size].remove(trial.number)
        of_round = self.pruning and trial.kind == "EXPLORATION" and trial.round == self.round
        if of_round and self.slot is None and self.step() == trial.size:
            self.slot = trial.number
        if trial.kind == "EXPLORATION" and self.slot != trial.number:
            trial.kind = "CONCURRENT"
        trial.status, trial.reason = "RUNNING", "UNSPECIFIED"
        trial.cost = trial.bound = None
        self._settle()

    def take(self, trial: ModelTrial, row: Row) -> None:
        """A valid report of a trial that runs or is lost."""
        if trial.lost:
            self.revive(trial)
        if trial.last is None or not trial.last.repeats(row):
            trial.rows.append(row)
        trial.last = row
        verdict = self.judge(trial, row)
        if verdict.reason:
            self.finish(trial, verdict)
            self.stop_expensive()

    # Comparisons.

    def _counting(self, size: int) -> list[ModelTrial]:
        return self._of(size)[-self.spec.window_size :]

    def _counted(self, size: int) -> list[float]:
        factor = 2.0 if self.spec.beta_knob is None else self.spec.beta_knob
        floor = 0.0 if self.min_cost is None else factor * self.min_cost
        costs = [(trial.cost or 0.0, trial.converged) for trial in self._counting(size)]
        return [cost if converged else max(cost, floor) for cost, converged in costs]

    def check_job(self, job: v1.Job) -> None:
        """Compares a job as a whole."""
        of_policy = job.policy_state.pruning_gts
        if self.spec.policy == "pruning_gts":
            stage = v1.PRUNING_GTS_STAGE_PRUNING if self.pruning else v1.PRUNING_GTS_STAGE_BANDIT
            same(of_policy.stage, stage, "stage")
            same(of_policy.pruning_round, self.round, "pruning_round")
        same(list(job.available_batch_sizes), self.surviving, "available_batch_sizes")
        same(job.num_trials, len(self.trials), "num_trials")
        same(job.min_cost if job.HasField("min_cost") else None, self.min_cost, "min_cost")
        same(
            job.min_cost_batch_size if job.HasField("min_cost_batch_size") else None,
            self.min_size,
            "min_cost_batch_size",
        )

    def check_details(self, known: v1.GetJobResponse) -> None:
        """Compares what a job knows about its batch sizes."""
        if self.knows_bounds:
            check_arms(known, {size: self._counted(size) for size in self.surviving})
        for state, size in zip(known.details.batch_size_states, self.sizes, strict=True):
            self._check_state(state, size)

    def _check_state(self, state: v1.BatchSizeState, size: int) -> None:
        mine = self._of(size)
        if size in self.excluded:
            status = "OUT_OF_MEMORY"
        elif size in self.pruned:
            status = "PRUNED"
        else:
            status = "AVAILABLE" if size in self._able() else "SET_ASIDE"
        failed = [
            t
            for t in self.trials
            if t.size == size and t.status in ("INTERRUPTED", "FAILED") and t.reason != "PREEMPTED"
        ]
        same(STATE[state.status], status, f"status of {size}")
        same(state.num_converged, sum(t.converged for t in mine), f"num_converged of {size}")
        same(state.num_not_converged, sum(not t.converged for t in mine), f"num_not_converged of {size}")
        same(state.num_failed, len(failed), f"num_failed of {size}")
        same(state.num_running, self._running(size), f"num_running of {size}")
        same(bool(state.reason), True, f"{size} has a reason")

    def check_trial(self, got: v1.Trial, trial: ModelTrial) -> None:
        """Compares a trial."""
        where, last = f"trial {trial.number}", trial.last
        same(got.id.trial_number, trial.number, f"{where} number")
        same(got.batch_size, trial.size, f"{where} batch size")
        same(kind_of(got), trial.kind, f"{where} kind")
        same(STATUS[got.status], trial.status, f"{where} status")
        same(REASON[got.end_reason], trial.reason, f"{where} end_reason")
        cost = self.price(last) if last and trial.running else trial.cost
        same(got.cost if got.HasField("cost") else None, cost, f"{where} cost")
        same(got.converged, trial.converged, f"{where} converged")
        same(got.newest.epoch, last.epoch if last else 0, f"{where} last_epoch")
        same(got.newest.time_seconds, last.seconds if last else 0.0, f"{where} time")
        same(got.newest.energy_joules, last.joules if last else 0.0, f"{where} energy")
        same(got.newest.metric if got.HasField("newest") else None, last.metric if last else None, f"{where} metric")
        same(got.HasField("end_time"), not trial.running, f"{where} has an end_time")
        leased = trial.running and self.spec.trial_lease_seconds > 0
        same(got.HasField("lease_expire_time"), leased, f"{where} has a lease")

    def check_decision(self, got: v1.Decision, trial: ModelTrial) -> None:
        """Compares a decision; that of a decided trial never changes."""
        where = f"decision on trial {trial.number} ({trial.status} {trial.reason})"
        same(got.stop_train, not trial.running, f"{where} stop_train")
        same(got.converged, trial.converged, f"{where} converged")
        cost = trial.cost
        if trial.running:
            cost = self.price(trial.last) if trial.last else None
        same(got.cost if got.HasField("cost") else None, cost, f"{where} cost")
        same(REASON[got.end_reason], trial.reason, f"{where} end_reason")
        same(got.last_epoch, trial.last.epoch if trial.last else 0, f"{where} last_epoch")
        beats = trial.running and self.spec.trial_lease_seconds > 0
        same(got.HasField("heartbeat_interval"), beats, f"{where} heartbeat_interval")
        if trial.status == "DECIDED" or (trial.running and self.knows_bounds):
            bound = self.limit(trial.size) if trial.running else trial.bound
            same(got.cost_bound if got.HasField("cost_bound") else None, bound, f"{where} cost_bound")
        if trial.status == "DECIDED":
            same(got.target_reached, trial.reached, f"{where} target_reached")
            trial.decision = trial.decision or got
            same(got, trial.decision, f"{where} repeated")


def kind_of(trial: v1.Trial) -> str:
    """The role of a trial under the paper's policy, else its origin."""
    return ROLE[trial.pruning_gts.role] if trial.HasField("pruning_gts") else ORIGIN[trial.origin]


def check_arms(known: v1.GetJobResponse, counted: dict[int, list[float]]) -> None:
    """Compares the arms of a job of the paper's policies with the costs that count."""
    of_policy = known.details.policy_details
    arms = of_policy.gts.arms if of_policy.HasField("gts") else of_policy.pruning_gts.arms
    if known.job.policy_state.pruning_gts.stage == v1.PRUNING_GTS_STAGE_PRUNING:
        same(len(arms), 0, "arms while pruning")
        return
    same([arm.batch_size for arm in arms], sorted(counted), "arms")
    for arm in arms:
        _check_arm(flat_of(known.job.spec), arm, counted[arm.batch_size])


def _check_arm(spec: SimpleNamespace, arm: v1.Arm, costs: list[float]) -> None:
    n, where = len(costs), f"arm {arm.batch_size}"
    same(arm.num_observations, n, f"{where} num_observations")
    if not n:
        same(arm.param_mean, spec.prior_mean, f"{where} mean")
        same(arm.param_precision, spec.prior_precision, f"{where} precision")
        return
    mean = math.fsum(costs) / n
    if spec.policy == "gts" and not spec.learn_reward_precision:
        precision = spec.reward_precision
        same(arm.reward_precision, precision, f"{where} reward_precision")
    else:
        variance = math.fsum((cost - mean) ** 2 for cost in costs) / n if min(costs) != max(costs) else 0.0
        got = 1 / arm.reward_precision if arm.reward_precision else math.inf
        close = abs(got - variance) <= 1e-7 * variance + 1e-13 * mean * mean
        if (variance == 0 and arm.reward_precision != math.inf) or not close:
            raise MismatchError(f"{where} variance: server {got!r}, model {variance!r} of {costs[:6]}")
        # It has been compared; what follows rests on it.
        precision = arm.reward_precision
    total = spec.prior_precision + n * precision
    same(arm.param_precision, total, f"{where} param_precision", rel=1e-9)
    prior = spec.prior_precision * spec.prior_mean
    want = -mean if math.isinf(total) else (prior + precision * n * -mean) / total
    least = 1e-9 * max(abs(mean), abs(spec.prior_mean), 1e-300)
    if not math.isclose(arm.param_mean, want, rel_tol=1e-8, abs_tol=least):
        raise MismatchError(f"{where} param_mean: server {arm.param_mean!r}, model {want!r}")
