"""Random calls of one trainer after another for one job, each answer compared with the oracle's."""

from __future__ import annotations

import contextlib
import math
import random
import threading
import time
import traceback
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from wattwise import v1

from tests.model.calls import Calls, MismatchError, RefusedError, same, stripped
from tests.model.jobs import bad_metric, good_metric, random_spec
from tests.model.oracle import END, STATUS, ExhaustedError, ModelTrial, Oracle, Row, kind_of

LEASE, EARLY, LATE = 8.0, 6.0, 1.2
"""Seconds: a lease is taken to be valid until LEASE - EARLY, and to have expired after LEASE + LATE.

On a busy machine a call may have to wait long for its channel after a restart, so the first margin is large.
"""

_WEIGHTS = {
    "next": 22.0,
    "report": 40,
    "again": 3,
    "resume": 4,
    "unknown_resume": 1,
    "repeat": 5,
    "bad": 4,
    "late": 5,
    "beat": 6,
    "end": 8,
    "unknown": 2,
    "look": 6,
    "look_all": 2,
    "confirm": 2,
    "differ": 1,
    "delete": 0.4,
}


def settle(*walkers: Walker) -> None:
    """Waits until all walkers are certain of their leases at the same moment; the expired trials are lost."""
    while not all(walker.is_certain() for walker in walkers):
        time.sleep(0.1)
    for walker in walkers:
        walker.expire()


class Gate:
    """Calls pass together; a restart passes alone."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._inside = 0
        self._closed = False

    @contextlib.contextmanager
    def passing(self) -> Iterator[None]:
        with self._changed:
            self._changed.wait_for(lambda: not self._closed)
            self._inside += 1
        try:
            yield
        finally:
            with self._changed:
                self._inside -= 1
                self._changed.notify_all()

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        with self._changed:
            self._closed = True
            self._changed.wait_for(lambda: not self._inside)
        try:
            yield
        finally:
            with self._changed:
                self._closed = False
                self._changed.notify_all()


class Twins:
    """Makes every call on two servers and compares the answers bit by bit."""

    def __init__(self, one: Calls, two: Calls) -> None:
        self._both = (one, two)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def call(*arguments: Any, **how: Any) -> Any:
            answers = [_answer(getattr(calls, name), arguments, how) for calls in self._both]
            if _comparable(name, answers[0]) != _comparable(name, answers[1]):
                raise MismatchError(f"the twins differ in {name}{arguments}: {answers}")
            if isinstance(answers[0], RefusedError):
                raise answers[0]
            return answers[0]

        return call


def _answer(call: Callable[..., Any], arguments: tuple[Any, ...], how: dict[str, Any]) -> Any:
    try:
        return call(*arguments, **how)
    except RefusedError as error:
        return error


def _comparable(name: str, answer: Any) -> object:
    if isinstance(answer, RefusedError):
        return answer.code
    if name == "trials":
        return [stripped(trial).SerializeToString(deterministic=True) for trial in answer]
    if name in ("next", "report", "beat", "end", "job"):
        return stripped(answer).SerializeToString(deterministic=True)
    return None


class Walker:
    """One job, one thread, one oracle."""

    def __init__(self, calls: Any, gate: Gate, rng: random.Random, lease: float, slack: float = LATE) -> None:
        self.slack = slack
        self.calls = calls
        self.gate = gate
        self.rng = rng
        self.lease = lease
        self.made: Counter[str] = Counter()
        self.trace: list[str] = []
        self.failure: str | None = None
        self._start()

    def _start(self, spec: v1.JobSpec | None = None) -> None:
        self.spec = spec or random_spec(self.rng, self.lease)
        answer = self.calls.register(self.spec)
        same(answer.created, True, "created")
        self.oracle = Oracle(answer.job.spec, self._decided)
        self.oracle.check_job(answer.job)
        self.trace = [f"register {' '.join(str(answer.job.spec).split())}"]

    def _decided(self, trial: ModelTrial) -> v1.Decision | None:
        """The answer to a trial that the server has decided, which a heartbeat does not change."""
        found = self.calls.trial(self._id(trial)).trial
        decided = STATUS[found.status] == "DECIDED"
        return self.calls.beat(self._id(trial)) if decided else None

    def is_certain(self) -> bool:
        """Returns whether it is certain of every lease whether it has expired."""
        now = time.monotonic()
        return not self.lease or not any(
            now - trial.lo >= LEASE - EARLY and now - trial.hi < LEASE + self.slack for trial in self._running
        )

    def expire(self) -> None:
        """Takes the trials whose leases have certainly expired as lost."""
        now = time.monotonic()
        expired = [trial for trial in self._running if self.lease and now - trial.hi >= LEASE + self.slack]
        for trial in sorted(expired, key=lambda trial: trial.lo):
            self.oracle.fail(trial, "LOST")
            self._say(f"lost {trial.number}")

    @property
    def _all(self) -> list[ModelTrial]:
        return self.oracle.trials

    @property
    def _running(self) -> list[ModelTrial]:
        return [trial for trial in self._all if trial.running]

    def run(self, until: float) -> None:
        """Calls until a moment, or until an answer differs."""
        try:
            while time.monotonic() < until:
                with self.gate.passing():
                    settle(self)
                    self._call()
                if self.lease and self.rng.random() < 0.06:
                    time.sleep(LEASE - EARLY + self.rng.random() * 2)
            with self.gate.passing():
                settle(self)
                self.look_all()
        except Exception:  # noqa: BLE001 - the thread's outcome, whatever it is
            lines = [traceback.format_exc()[-1800:], "last calls:", *self.trace[:1], *self.trace[-40:]]
            self.failure = "\n  ".join(lines)

    def _call(self) -> None:
        weights = dict(_WEIGHTS)
        if sum(trial.running for trial in self._all) > 12:
            weights["next"] = 3
        (name,) = self.rng.choices(list(weights), list(weights.values()))
        getattr(self, name)()
        self.made[name] += 1
        if len(self._all) > 150:
            self.look_all()
            self._start()

    def _id(self, trial: ModelTrial) -> v1.TrialId:
        return v1.TrialId(job_id=self.spec.job_id, launch_id=trial.request, trial_number=trial.number)

    def _say(self, text: str) -> None:
        self.trace.append(text)

    def _pick(self, suits: Callable[[ModelTrial], object] = lambda _: True) -> ModelTrial | None:
        found = [trial for trial in self._all if suits(trial)]
        return self.rng.choice(found) if found else None

    def _renewed(self, trial: ModelTrial, since: float) -> None:
        trial.lo, trial.hi = since, time.monotonic()

    def next(self) -> None:
        request = uuid.UUID(int=self.rng.getrandbits(128)).hex
        since = time.monotonic()
        try:
            kind, allowed = self.oracle.choice()
        except ExhaustedError:
            self._say("next: nothing is left")
            self._refused("FAILED_PRECONDITION", self.calls.next, self.spec.job_id, request)
            return
        answer = self.calls.next(self.spec.job_id, request)
        got = answer.trial
        self._say(f"next -> {got.id.trial_number} {kind_of(got)} {got.batch_size}: {got.reason}")
        same(got.id.trial_number, len(self._all) + 1, "the next trial's number")
        same(kind_of(got), kind, "the next trial's kind")
        if got.batch_size not in allowed or not got.reason:
            raise MismatchError(
                f"batch size: server {got.batch_size} ({answer.trial.reason!r}), model {sorted(allowed)}"
            )
        trial = self.oracle.dispatch(got.id.trial_number, got.batch_size, kind, request)
        self._renewed(trial, since)
        self.oracle.check_trial(got, trial)

    def again(self) -> None:
        if trial := self._pick():
            self._say(f"again {trial.number}")
            self.oracle.check_trial(self.calls.next(self.spec.job_id, trial.request).trial, trial)

    def resume(self) -> None:
        resumable = self._pick(lambda t: t.reason in ("PREEMPTED", "LOST"))
        trial = resumable or self._pick()
        if trial is None:
            return
        self._say(f"resume {trial.number} ({trial.status} {trial.reason})")
        since = time.monotonic()
        got = self.calls.next(self.spec.job_id, trial.request, resume=True).trial
        if resumable:
            self.oracle.revive(trial)
            self._renewed(trial, since)
            self.oracle.stop_expensive()
        elif trial.running:
            self._renewed(trial, since)
        self.oracle.check_trial(got, trial)

    def unknown_resume(self) -> None:
        self._refused("NOT_FOUND", self.calls.next, self.spec.job_id, uuid.uuid4().hex, resume=True)
        self._refused("INVALID_ARGUMENT", self.calls.next, self.spec.job_id, "", resume=True)

    def _result(self, trial: ModelTrial, row: Row) -> v1.TrainingResult:
        return v1.TrainingResult(
            trial=self._id(trial),
            measurement=v1.Measurement(
                epoch=row.epoch, time_seconds=row.seconds, energy_joules=row.joules, metric=row.metric
            ),
        )

    def _send(self, result: v1.TrainingResult) -> v1.Decision:
        on_stream = self.rng.random() < 0.2 and isinstance(self.calls, Calls)
        decision: v1.Decision = self.calls.stream(result) if on_stream else self.calls.report(result)
        return decision

    def report(self) -> None:
        trial = self._pick(lambda t: t.running) if self.rng.random() < 0.9 else self._pick(lambda t: t.lost)
        if trial is None:
            self.next()
            return
        row = self._row(trial)
        if row.epoch > 2**31 - 1:
            return
        self._say(f"report {trial.number} {tuple(row)}")
        since = time.monotonic()
        decision = self._send(self._result(trial, row))
        self.oracle.hear(decision)
        self.oracle.take(trial, row)
        self._renewed(trial, since)
        self.oracle.check_decision(decision, trial)

    def _row(self, trial: ModelTrial) -> Row:
        rng, spec = self.rng, self.oracle.job
        epoch, seconds, joules, _ = trial.last or Row(0, 0.0, 0.0, 0.0)
        room = spec.max_epochs - epoch
        small = room < 5 or rng.random() < 0.8
        epoch += 1 if small else rng.choice([2, 3, min(room, 10**6), room if rng.random() < 0.1 else 1])
        scale = rng.choice([1e-3, 1, 1, 1, 50]) if rng.random() < 0.97 else rng.choice([0, 1e-300, 1e30])
        seconds += rng.choice([0, 1, 1.5, rng.random() * 9]) * scale
        joules += rng.choice([0, 100, rng.random() * 900]) * scale
        metric = good_metric(spec, rng) if rng.random() < 0.3 else bad_metric(spec, rng)
        return Row(epoch, float(seconds or 1e-9), float(joules), metric)

    def repeat(self) -> None:
        if (trial := self._pick(lambda t: t.last and (t.running or t.lost))) and trial.last:
            self._say(f"repeat {trial.number}")
            since = time.monotonic()
            decision = self._send(self._result(trial, trial.last))
            self.oracle.hear(decision)
            self.oracle.take(trial, trial.last)
            self._renewed(trial, since)
            self.oracle.check_decision(decision, trial)

    def bad(self) -> None:
        trial = self._pick(lambda t: t.last and (t.running or t.lost))
        if trial is None or trial.last is None:
            return
        epoch, seconds, joules, metric = trial.last
        wrong = self.rng.choice(
            [
                Row(epoch, seconds + 1, joules, metric),
                Row(epoch - 1, seconds, joules, metric),
                Row(epoch + 1, seconds, joules * 0.9 - 1, metric),
                Row(epoch + 1, seconds * 0.9 - 1, joules, metric),
                Row(epoch + 1, 0.0, joules, metric),
                Row(epoch + 1, math.nan, joules, metric),
                Row(epoch + 1, seconds, math.inf, metric),
                Row(epoch + 1, seconds, joules, math.inf),
                Row(epoch + 1, seconds, 1.5e308, metric),
                Row(0, seconds, joules, metric),
                Row(-(2**31), seconds, joules, metric),
                Row(epoch, seconds, joules, 3.0 if math.isnan(metric) else metric + 1),
            ]
        )
        free = wrong.joules == 1.5e308 and self.oracle.spec.eta_knob == 0
        if wrong.repeats(trial.last) or wrong.epoch > 2**31 - 1 or free:
            return
        self._say(f"bad {trial.number} {tuple(wrong)}")
        self._refused("INVALID_ARGUMENT", self._send, self._result(trial, wrong))
        self.look()

    def late(self) -> None:
        if trial := self._pick(lambda t: not t.running and not t.lost):
            self._say(f"late {trial.number}")
            row = Row(self.rng.choice([1, 5, 2**31 - 1]), 1.0, 1.0, 1.0)
            sends = self.rng.random() < 0.6
            decision = self._send(self._result(trial, row)) if sends else self.calls.beat(self._id(trial))
            self.oracle.check_decision(decision, trial)

    def beat(self) -> None:
        also_lost = self.rng.random() < 0.4
        if trial := self._pick(lambda t: t.running or (also_lost and t.lost)):
            self._say(f"beat {trial.number} ({trial.reason})")
            since = time.monotonic()
            decision = self.calls.beat(self._id(trial))
            if trial.lost:
                self.oracle.revive(trial)
                self.oracle.stop_expensive()
            self._renewed(trial, since)
            self.oracle.check_decision(decision, trial)

    def end(self) -> None:
        reason = self.rng.choice(["COMPLETED", "ERROR", "ERROR", "ERROR", "PREEMPTED", "PREEMPTED", "OUT_OF_MEMORY"])
        trial = self._pick(lambda t: t.running) if self.rng.random() < 0.7 else self._pick()
        if trial is None:
            return
        self._say(f"end {trial.number} ({trial.status} {trial.reason}) {reason}")
        got = self.calls.end(self._id(trial), END[reason])
        if trial.lost:
            self.oracle.revive(trial)
        if trial.running:
            self.oracle.fail(trial, reason)
        self.oracle.check_trial(got, trial)

    def unknown(self) -> None:
        # Smaller numbers may be those of a deleted job of this id.
        number = len(self._all) + self.rng.choice([1000, 10**9])
        nowhere = v1.TrialId(job_id=self.spec.job_id, launch_id="nobody", trial_number=number)
        self._refused("NOT_FOUND", self.calls.beat, nowhere)
        self._refused("NOT_FOUND", self.calls.job, self.spec.job_id + "x")
        if trial := self._pick():
            for wrong in (
                v1.TrialId(job_id=self.spec.job_id, launch_id="nobody", trial_number=trial.number),
                v1.TrialId(job_id=self.spec.job_id, launch_id=trial.request, trial_number=trial.number + 1),
            ):
                result = v1.TrainingResult(trial=wrong, measurement=v1.Measurement(epoch=1))
                self._refused("NOT_FOUND", self._send, result)
            self._refused("INVALID_ARGUMENT", self.calls.end, self._id(trial), END["COST_BOUND"])

    def _refused(self, code: str, call: Callable[..., Any], *arguments: Any, **how: Any) -> None:
        try:
            answer = call(*arguments, **how)
        except RefusedError as error:
            same(error.code, code, f"status of {arguments}")
        else:
            raise MismatchError(f"{arguments} should be {code}, was {answer}")

    def look(self) -> None:
        known = self.calls.job(self.spec.job_id)
        self.oracle.check_job(known.job)
        self.oracle.check_details(known)

    def look_all(self) -> None:
        self.look()
        found = self.calls.trials(self.spec.job_id, page=self.rng.choice([0, 1000, 7]))
        same([t.id.trial_number for t in found], list(range(1, len(self._all) + 1)), "trial numbers")
        for got, trial in zip(found, self._all, strict=True):
            self.oracle.check_trial(got, trial)
        if (one := self._pick()) and isinstance(self.calls, Calls):
            kept = self.calls.measurements(self._id(one))
            rows = [Row(m.epoch, m.time_seconds, m.energy_joules, m.metric) for m in kept]
            same(repr(rows), repr(one.rows), f"measurements of trial {one.number}")

    def confirm(self) -> None:
        same(self.calls.register(self.spec).created, False, "registered again: created")

    def differ(self) -> None:
        other = v1.JobSpec()
        other.CopyFrom(self.spec)
        other.target.value += 1
        self._refused("ALREADY_EXISTS", self.calls.register, other)

    def delete(self) -> None:
        job = self.spec.job_id
        running = [trial for trial in self._all if trial.running]
        gone = self.calls.delete(job)
        same(gone.num_stopped_trials, len(running), "stopped trials")
        self._refused("NOT_FOUND", self.calls.job, job)
        for trial in self._all[-5:]:
            same(self.calls.beat(self._id(trial)).end_reason, END["JOB_DELETED"], "a deleted job's trial stops")
        self._start(self.spec if self.rng.random() < 0.5 else None)
