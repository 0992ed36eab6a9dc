"""Threads that call whatever they like on shared jobs while the server is killed, and an audit of what is left."""

from __future__ import annotations

import math
import random
import threading
import time
import traceback
import uuid
from collections import Counter
from dataclasses import dataclass, field

from wattwise import v1
from wattwise.spec import policy_name

from tests.jobs import flat_of
from tests.model.calls import Calls, MismatchError, RefusedError
from tests.model.jobs import bad_metric, good_metric
from tests.model.oracle import END, REASON, STATE, STATUS, Row, check_arms, kind_of

_REASONS = {
    "RUNNING": {"UNSPECIFIED"},
    "DECIDED": {"TARGET_REACHED", "COST_BOUND", "MAX_EPOCHS"},
    "INTERRUPTED": {"PREEMPTED", "LOST"},
    "FAILED": {"COMPLETED", "ERROR", "OUT_OF_MEMORY"},
}
_BY_TRAINER = {"PREEMPTED", *_REASONS["FAILED"]}
_MAY_BE_SET_ASIDE = 3
"""Failures in a row; how many of them were in a row cannot be seen from outside."""
_MAY_HAPPEN = {"UNAVAILABLE", "DEADLINE_EXCEEDED", "FAILED_PRECONDITION", "CANCELLED"}


@dataclass
class Known:
    """What the server acknowledged of one trial. `busy` is held by the one thread that reports it."""

    size: int
    request: str
    busy: threading.Lock = field(default_factory=threading.Lock)
    acknowledged: dict[int, Row] = field(default_factory=dict)
    decision: v1.Decision | None = None
    ended: bool = False
    last: Row = field(default_factory=lambda: Row(0, 0.0, 0.0, 0.0))
    pending: Row | None = None


class Ledger:
    """What the server acknowledged for one job."""

    def __init__(self, spec: v1.JobSpec) -> None:
        self.spec = spec
        self.lock = threading.Lock()
        self.trials: dict[int, Known] = {}
        self.requests: dict[str, int] = {}
        self.sent: dict[str, None] = {}
        self.problems: list[str] = []

    def dispatched(self, request: str, trial: v1.Trial) -> None:
        """A request was answered by a trial."""
        with self.lock:
            number, size = trial.id.trial_number, trial.batch_size
            if self.requests.setdefault(request, number) != number:
                self.problems.append(f"request {request} got trials {self.requests[request]} and {number}")
            known = self.trials.setdefault(number, Known(size, request))
            if (known.size, known.request) != (size, request):
                self.problems.append(f"trial {number} was {known.size}/{known.request}, is {size}/{request}")

    def trial_id(self, number: int) -> v1.TrialId:
        """The id of a trial."""
        return v1.TrialId(job_id=self.spec.job_id, launch_id=self.trials[number].request, trial_number=number)


class Agent:
    """A thread that makes random calls."""

    def __init__(self, calls: Calls, ledgers: list[Ledger], seed: int) -> None:
        self.calls = calls
        self.ledgers = ledgers
        self.rng = random.Random(seed)
        self.made: Counter[str] = Counter()
        self.failure: str | None = None

    def run(self, stop: threading.Event) -> None:
        """Calls until it is stopped."""
        weights = {"next": 20, "retry": 4, "report": 55, "beat": 5, "end": 5, "resume": 5, "look": 6}
        try:
            while not stop.is_set():
                ledger = self.rng.choice(self.ledgers)
                (name,) = self.rng.choices(list(weights), list(weights.values()))
                self.made[name] += 1
                self._call(name, ledger)
        except Exception:  # noqa: BLE001 - the thread's outcome, whatever it is
            self.failure = traceback.format_exc()

    def _call(self, name: str, ledger: Ledger) -> None:
        try:
            getattr(self, name)(ledger)
        except RefusedError as error:
            if error.code not in _MAY_HAPPEN:
                ledger.problems.append(f"{name}: {error}")
            time.sleep(0.02)

    def next(self, ledger: Ledger) -> None:
        with ledger.lock:
            if sum(known.decision is None for known in ledger.trials.values()) > 25:
                return
        request = uuid.uuid4().hex
        ledger.sent[request] = None
        for _ in range(self.rng.choice([1, 1, 3])):
            try:
                trial = self.calls.next(ledger.spec.job_id, request, wait=False, timeout=3).trial
            except RefusedError as error:
                if error.code == "FAILED_PRECONDITION":
                    ledger.sent.pop(request, None)
                    return
                continue
            ledger.dispatched(request, trial)
            return

    def retry(self, ledger: Ledger) -> None:
        """Any request that was ever made, answered or not, perhaps by two threads at once."""
        with ledger.lock:
            request = self.rng.choice(list(ledger.sent)) if ledger.sent else None
        if request:
            ledger.dispatched(request, self.calls.next(ledger.spec.job_id, request, timeout=5).trial)

    def _some(self, ledger: Ledger) -> int | None:
        with ledger.lock:
            undecided = [number for number, known in ledger.trials.items() if known.decision is None]
            pool = undecided or list(ledger.trials)
            return self.rng.choice(pool) if pool else None

    def report(self, ledger: Ledger) -> None:
        number = self._some(ledger)
        if number is None:
            self.next(ledger)
            return
        known = ledger.trials[number]
        if known.busy.acquire(blocking=False):
            try:
                self._report(ledger, number, known)
            finally:
                known.busy.release()

    def _report(self, ledger: Ledger, number: int, known: Known) -> None:
        rng, spec = self.rng, ledger.spec
        metric = good_metric(spec, rng) if rng.random() < 0.2 else bad_metric(spec, rng)
        epoch, seconds, joules, _ = known.last
        # One that was not acknowledged is sent again unchanged: the server may have it.
        row = known.pending or Row(epoch + 1, seconds + 9 - 9 * rng.random(), joules + rng.random() * 900, metric)
        known.pending = row
        result = v1.TrainingResult(
            trial=ledger.trial_id(number),
            measurement=v1.Measurement(
                epoch=row.epoch, time_seconds=row.seconds, energy_joules=row.joules, metric=row.metric
            ),
        )
        if rng.random() < 0.2:
            decision = self.calls.stream(result, beat=rng.random() < 0.5)
        else:
            decision = self.calls.report(result, wait=False, timeout=5)
        if decision.stop_train:
            self._stopped(ledger, number, known, decision)
        else:
            known.acknowledged[row.epoch] = row
        known.last, known.pending = row, None

    def _stopped(self, ledger: Ledger, number: int, known: Known, decision: v1.Decision) -> None:
        with ledger.lock:
            if known.decision is not None and known.decision != decision and not known.ended:
                ledger.problems.append(f"trial {number}: the decision was {known.decision}, is {decision}")
            known.ended = known.ended or REASON[decision.end_reason] in _BY_TRAINER
            known.decision = decision

    def beat(self, ledger: Ledger) -> None:
        number = self._some(ledger)
        if number is None:
            return
        known = ledger.trials[number]
        if known.busy.acquire(blocking=False):
            try:
                decision = self.calls.beat(ledger.trial_id(number), wait=False, timeout=5)
                if decision.stop_train:
                    self._stopped(ledger, number, known, decision)
            finally:
                known.busy.release()

    def end(self, ledger: Ledger) -> None:
        number = self._some(ledger)
        if number is None or self.rng.random() < 0.5:
            return
        known = ledger.trials[number]
        with known.busy:
            reason = self.rng.choice(["COMPLETED", "ERROR", "OUT_OF_MEMORY", "PREEMPTED", "PREEMPTED"])
            # From here on it may have ended, whatever the answer.
            known.ended = True
            trial = self.calls.end(ledger.trial_id(number), END[reason], wait=False, timeout=5)
            if STATUS[trial.status] == "RUNNING":
                ledger.problems.append(f"trial {number} runs after EndTrial")

    def resume(self, ledger: Ledger) -> None:
        with ledger.lock:
            pool = [known for known in ledger.trials.values() if known.ended]
        if pool:
            known = self.rng.choice(pool)
            with known.busy:
                trial = self.calls.next(ledger.spec.job_id, known.request, resume=True, wait=False, timeout=5).trial
                ledger.dispatched(known.request, trial)
                if STATUS[trial.status] == "RUNNING":
                    with ledger.lock:
                        known.decision = None

    def look(self, ledger: Ledger) -> None:
        with ledger.lock:
            least = max(ledger.trials, default=0)
        job = self.calls.job(ledger.spec.job_id, wait=False, timeout=5).job
        if job.num_trials < least:
            ledger.problems.append(f"num_trials is {job.num_trials} after trial {least} was dispatched")


def counts(trial: v1.Trial) -> bool:
    """Whether a result counts: one that reached the target too cheaply does not."""
    return all(warning.reason != v1.WARNING_REASON_DELIVERY_UNUSUALLY_CHEAP for warning in trial.warnings)


class Audit:
    """The invariants of a job at rest, which hold for every policy; the arms are those of the paper's."""

    def __init__(self, calls: Calls, ledger: Ledger) -> None:
        self.calls = calls
        self.ledger = ledger
        self.known = calls.job(ledger.spec.job_id)
        self.job, self.details = self.known.job, self.known.details
        self.spec = self.job.spec
        self.trials = calls.trials(ledger.spec.job_id, page=1000)
        self.problems = list(ledger.problems)

    def run(self) -> list[str]:
        """What does not hold."""
        self._numbers()
        for trial in self.trials:
            self._trial(trial)
        self._cheapest()
        for state in self.details.batch_size_states:
            self._batch_size(state)
        self._arms()
        for number, known in self.ledger.trials.items():
            self._acknowledged(number, known)
        return [f"{self.spec.job_id}: {problem}" for problem in self.problems]

    def _hold(self, condition: object, text: str) -> None:
        if not condition:
            self.problems.append(text)

    def _numbers(self) -> None:
        numbers = [trial.id.trial_number for trial in self.trials]
        self._hold(numbers == list(range(1, self.job.num_trials + 1)), f"trial numbers {numbers}")
        running = [t for t in self.trials if kind_of(t) == "EXPLORATION" and STATUS[t.status] == "RUNNING"]
        self._hold(
            len(running) <= (self.job.policy_state.pruning_gts.stage == v1.PRUNING_GTS_STAGE_PRUNING),
            f"{len(running)} trials explore",
        )

    def _trial(self, trial: v1.Trial) -> None:
        where, reason, status = f"trial {trial.id.trial_number}", REASON[trial.end_reason], STATUS[trial.status]
        self._hold(reason in _REASONS[status], f"{where} is {status} by {reason}")
        self._hold(trial.converged == (reason == "TARGET_REACHED"), f"{where} converged={trial.converged}, {reason}")
        usual = counts(trial) or (trial.converged and any(other.converged for other in filter(counts, self.trials)))
        self._hold(usual, f"{where} does not count, but is no delivery beside others")
        self._hold(trial.batch_size in self.spec.batch_sizes, f"{where} has batch size {trial.batch_size}")
        if trial.HasField("cost"):
            eta, watts = self.spec.eta_knob, flat_of(self.spec).max_power_watts
            want = eta * trial.newest.energy_joules + (1 - eta) * watts * trial.newest.time_seconds
            self._hold(math.isclose(trial.cost, want, rel_tol=1e-12), f"{where} costs {trial.cost}, not {want}")

    def _cheapest(self) -> None:
        if flat_of(self.spec).window_size:
            return
        least: dict[int, float] = {}
        for trial in filter(counts, self.trials):
            size = trial.batch_size
            if trial.converged and trial.cost and size in self.job.available_batch_sizes:
                least[size] = min(least.get(size, math.inf), trial.cost)
        if not least:
            self._hold(not self.job.HasField("min_cost"), f"min_cost is {self.job.min_cost}, but nothing converged")
            return
        found, holder = self.job.min_cost, self.job.min_cost_batch_size
        self._hold(found == least.get(holder), f"min_cost is {found}, that of {holder} is {least.get(holder)}")
        # A cheaper one does not count while it keeps failing.
        may_fail = {
            state.batch_size for state in self.details.batch_size_states if state.num_failed >= _MAY_BE_SET_ASIDE
        }
        cheaper = {size for size, cost in least.items() if cost < found}
        self._hold(cheaper <= may_fail, f"min_cost is {found}, but {sorted(cheaper - may_fail)} are cheaper")

    def _batch_size(self, state: v1.BatchSizeState) -> None:
        size = state.batch_size
        mine = [trial for trial in self.trials if trial.batch_size == size]
        ends = Counter(STATUS[trial.status] for trial in mine)
        preempted = sum(REASON[trial.end_reason] == "PREEMPTED" for trial in mine)
        converged = sum(trial.converged for trial in filter(counts, mine))
        missed = sum(STATUS[trial.status] == "DECIDED" and not trial.converged for trial in mine)
        want = (converged, missed, ends["FAILED"] + ends["INTERRUPTED"] - preempted, ends["RUNNING"])
        got = (state.num_converged, state.num_not_converged, state.num_failed, state.num_running)
        self._hold(got == want, f"batch size {size} has {got} trials, listed are {want}")
        out = STATE[state.status] in ("PRUNED", "OUT_OF_MEMORY")
        self._hold(out == (size not in self.job.available_batch_sizes), f"batch size {size} is {STATE[state.status]}")
        if STATE[state.status] == "OUT_OF_MEMORY":
            smaller = [t for t in self.trials if t.batch_size <= size]
            self._hold(any(REASON[t.end_reason] == "OUT_OF_MEMORY" for t in smaller), f"{size} never ran out of memory")

    def _arms(self) -> None:
        if policy_name(self.spec) == "knowledge_gradient":
            return
        done = [trial for trial in self.trials if STATUS[trial.status] == "DECIDED" and counts(trial)]
        done.sort(key=lambda trial: (trial.end_time.ToNanoseconds(), trial.id.trial_number))
        factor = flat_of(self.spec).beta_knob or 2.0
        floor = factor * self.job.min_cost if self.job.HasField("min_cost") else 0.0
        counted, window = {}, flat_of(self.spec).window_size
        for size in self.job.available_batch_sizes:
            mine = [trial for trial in done if trial.batch_size == size]
            border = [trial.end_time.ToNanoseconds() for trial in mine[-window - 1 :][:2]]
            if window and len(mine) > window and border[0] == border[1]:
                # Which of the two is in the window cannot be seen from outside.
                return
            counted[size] = [t.cost if t.converged else max(t.cost, floor) for t in mine[-window:]]
        try:
            check_arms(self.known, counted)
        except MismatchError as error:
            self.problems.append(str(error))

    def _acknowledged(self, number: int, known: Known) -> None:
        found = next((trial for trial in self.trials if trial.id.trial_number == number), None)
        if found is None or found.batch_size != known.size:
            self.problems.append(f"acknowledged trial {number} is gone or has another batch size")
            return
        kept = self.calls.measurements(found.id)
        rows = {m.epoch: Row(m.epoch, m.time_seconds, m.energy_joules, m.metric) for m in kept}
        for epoch, row in known.acknowledged.items():
            self._hold(
                repr(rows.get(epoch)) == repr(row), f"trial {number}: epoch {epoch} was {row}, is {rows.get(epoch)}"
            )
        again = self.calls.next(self.spec.job_id, known.request).trial
        self._hold(again.id == found.id, f"the request of trial {number} finds another")
        if STATUS[found.status] == "DECIDED":
            one = self.calls.beat(found.id)
            two = self.calls.report(v1.TrainingResult(trial=found.id, measurement=v1.Measurement(metric=0.1, epoch=1)))
            self._hold(one == two and one.stop_train, f"trial {number}: its decisions differ")
            if known.decision is not None and not known.ended:
                self._hold(known.decision == one, f"trial {number}: the decision was {known.decision}, is {one}")
