"""Failures: what they mean for a batch size, and which batch sizes may be chosen. The same for every policy.

A failed trial says nothing about other batch sizes, except that one which ran out of memory speaks for larger ones too.
A batch size whose trials keep failing is set aside, with growing pauses, and never for good: bugs get fixed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from enum import Enum
from itertools import count, takewhile
from typing import NamedTuple

from wattwise.rules import EndReason

from wattwise_server.domain import FAILURES_TO_SET_ASIDE, Arm, Search, Stage, Trial
from wattwise_server.errors import MISSED, begin_again, described, jobs_command, other_job, remedy

_LONGEST_PAUSE = 1024
"""Trials."""

_FAILURES_KEPT = FAILURES_TO_SET_ASIDE + 10
"""The longest pause, 2^10 trials, needs this many."""


def counts_as_failure(trial: Trial) -> bool:
    """Returns whether a failed trial counts against its batch size; a preempted one does not."""
    return trial.end_reason is not EndReason.PREEMPTED


def with_failure(search: Search, trial: Trial) -> Search:
    """Counts a failed trial; one that ran out of memory may exclude its batch size and larger ones."""
    if not counts_as_failure(trial):
        return search
    arms = [_with_failure(arm, trial) if arm.batch_size == trial.batch_size else arm for arm in search.arms]
    return replace(search, arms=_with_excluded(arms))


def with_failure_undone(search: Search, trial: Trial) -> Search:
    """Returns the search after a lost trial turned out to be alive."""
    if not counts_as_failure(trial):
        return search
    arms = (_without_failure(arm, trial) if arm.batch_size == trial.batch_size else arm for arm in search.arms)
    return replace(search, arms=tuple(arms))


def with_fitting(search: Search, batch_size: int) -> Search:
    """Returns the search after a trial was decided: its batch size and all smaller ones fit into memory."""
    if not any(arm.out_of_memory for arm in search.arms):
        return search
    arms = [replace(arm, out_of_memory=0) if arm.batch_size <= batch_size else arm for arm in search.arms]
    return replace(search, arms=_with_excluded(arms))


def with_readmitted(search: Search, batch_size: int) -> Search:
    """Returns the search after a person readmitted a batch size: what ruled it out no longer counts, a ban aside.

    That it fits into memory means that smaller ones fit too. Larger ones are no longer excluded by it, only by trials
    of larger batch sizes that ran out of memory.
    """

    def readmitted(arm: Arm) -> Arm:
        if arm.batch_size > batch_size:
            return arm
        arm = replace(arm, out_of_memory=0)
        if arm.batch_size < batch_size:
            return arm
        return replace(arm, num_failed=0, num_out_of_memory=0, failed_cost=0.0, failed_trials=(), pruned=False)

    return replace(search, arms=_with_excluded([readmitted(arm) for arm in search.arms]))


def has_trials(search: Search) -> bool:
    """Returns whether any trial counts, running ones included."""
    return any(arm.num_decided or arm.num_failed or arm.running for arm in search.arms)


def failing(arm: Arm) -> bool:
    """Returns whether a batch size has failed so often in a row that it is set aside, or tried after a pause."""
    return len(arm.failed_trials) >= FAILURES_TO_SET_ASIDE


def pause_end(search: Search, arm: Arm) -> int:
    """Returns the number of the last trial for which a failing batch size is set aside."""
    doublings = len(arm.failed_trials) - FAILURES_TO_SET_ASIDE
    # After the first pause every other batch size has had its turn.
    pause = min(2**doublings, _LONGEST_PAUSE) if doublings else len(search.available) - 1
    return arm.failed_trials[-1] + pause


def set_aside(search: Search, arm: Arm, trial_number: int) -> bool:
    """Returns whether a batch size must not be chosen for a trial: it pauses, or a trial is already trying it again."""
    if not failing(arm):
        return False
    if _first_pause_of_round(search, arm):
        # It lasts until every other batch size has a result.
        waiting = any(a.round_cost is None and not failing(a) for a in search.available)
        return arm.running > 0 or waiting
    return arm.running > 0 or trial_number <= pause_end(search, arm)


def choosable(search: Search, trial_number: int) -> Sequence[Arm]:
    """Returns the arms that may be chosen: the available ones that are not set aside, else the one that is due first.

    Empty only if no arm is available.
    """
    able = [arm for arm in search.available if not set_aside(search, arm, trial_number)]
    return able or sorted(search.available, key=lambda arm: due(search, arm))[:1]


def due(search: Search, arm: Arm) -> tuple[object, ...]:
    """Sorts the batch sizes that are set aside by when they are tried again, the nearest to the default first."""
    return arm.running > 0, pause_end(search, arm), abs(arm.batch_size - search.round_default), arm.batch_size


def ruled_out(search: Search) -> Mapping[str, Sequence[int]]:
    """Returns the batch sizes by what happened to them, for a job that has none left; one may have several causes."""

    def sizes(test: Callable[[Arm], bool]) -> Sequence[int]:
        return [arm.batch_size for arm in search.arms if test(arm)]

    return {
        "failed": sizes(lambda arm: arm.num_failed > arm.num_out_of_memory),
        "out_of_memory": sizes(lambda arm: arm.out_of_memory > 0),
        "missed": sizes(lambda arm: arm.num_decided > arm.num_converged),
        "banned": sizes(lambda arm: arm.banned),
        "untried": sizes(lambda arm: not (arm.num_decided or arm.num_failed or arm.banned)),
    }


def advice(search: Search, job_id: str) -> str:
    """Returns why launching the job again will hardly deliver a model, and what to change; empty while it may."""
    causes = ruled_out(search)
    if not search.available:
        return f"no batch size is left to try: {remedy(causes, job_id)}"
    able = [arm for arm in search.available if not failing(arm)]
    decided = any(arm.num_decided for arm in search.arms)
    failures = sum(arm.num_failed - arm.num_out_of_memory for arm in search.arms)
    others = described({cause: sizes for cause, sizes in causes.items() if cause not in ("missed", "untried")})
    if not able or (failures >= FAILURES_TO_SET_ASIDE and not decided):
        return _failing_advice(search, job_id, f"trials keep failing ({others})")
    if row := _newest_failures(search):
        newest = {arm.batch_size for arm in search.arms if not row.isdisjoint(arm.failed_trials)}
        of_newest = {cause: [size for size in causes[cause] if size in newest] for cause in ("failed", "out_of_memory")}
        numbers = f"{min(row)} to {max(row)} failed one after the other"
        return _failing_advice(search, job_id, f"trials {numbers} ({described(of_newest)})")
    if all(arm.num_decided for arm in able) and not any(arm.num_converged for arm in search.arms):
        missed = f"({', '.join(str(arm.batch_size) for arm in able)}) has {MISSED}"
        besides = f" ({others})" if others else ""
        return (
            f"every batch size that may be chosen {missed}{besides}: "
            f"{other_job(causes)}; or fix the training, after which {begin_again(job_id)}"
        )
    return ""


def _failing_advice(search: Search, job_id: str, what: str) -> str:
    pruned = any(arm.pruned for arm in search.arms)
    back = f", and {jobs_command('reset', job_id)} brings the pruned batch sizes back" if pruned else ""
    return f"{what}: fix what makes them crash, run out of memory or end early; the next launches try again{back}"


def _newest_failures(search: Search) -> set[int]:
    """Returns the numbers of the newest trials if enough of them failed one after the other; else none.

    Those that are larger than what is known to fit are the search's way to find what fits.
    """
    failed = {number: arm for arm in search.arms for number in arm.failed_trials}
    # The newest numbers may be those of running trials.
    running = sum(arm.running for arm in search.arms)
    if not failed or max(failed) < search.num_trials - running:
        return set()
    row = set(takewhile(failed.__contains__, count(max(failed), -1)))
    known = [number for number in row if failed[number].num_decided or not failed[number].excluded]
    return row if len(known) >= FAILURES_TO_SET_ASIDE else set()


class Status(Enum):
    """The status of a batch size in the search, bans and pins of people aside."""

    AVAILABLE = "AVAILABLE"
    PRUNED = "PRUNED"
    OUT_OF_MEMORY = "OUT_OF_MEMORY"
    SET_ASIDE = "SET_ASIDE"


class State(NamedTuple):
    """The status of a batch size, and a sentence that says why, or what is known about it."""

    status: Status
    reason: str


def state(search: Search, arm: Arm, job_id: str) -> State:
    """Returns the state of a batch size for the next trial; the reason of a banned one says so first."""
    known = _state(search, arm, job_id)
    if not arm.banned:
        return known
    unban = jobs_command("unban", job_id, arm.batch_size)
    return known._replace(reason=f"banned until {unban}; {known.reason}")


def _state(search: Search, arm: Arm, job_id: str) -> State:
    readmit = jobs_command("readmit", job_id, arm.batch_size)
    if arm.excluded:
        ran_out = [a.batch_size for a in search.arms if a.out_of_memory and a.batch_size <= arm.batch_size]
        if any(a.running for a in search.arms if a.batch_size >= ran_out[-1]):
            helps = f"{arm.batch_size} is available again if the trial that is still running ends with a decision"
        else:
            helps = f"{readmit} readmits it if it fits after all"
        return State(Status.OUT_OF_MEMORY, f"trials with {_listed(ran_out)} ran out of memory; {helps}")
    if arm.pruned:
        why = MISSED if arm.num_decided > arm.num_converged else f"lies beyond one that {MISSED}"
        return State(Status.PRUNED, f"pruned: it {why}; {readmit} brings it back")
    number = search.num_trials + 1
    if not set_aside(search, arm, number):
        return State(Status.AVAILABLE, _known(arm))
    failed = f"its last {len(arm.failed_trials)} trials failed"
    if arm in choosable(search, number):
        return State(Status.AVAILABLE, f"{failed}; it is the next to be tried, since every other one is set aside too")
    if arm.running:
        when = "after its running trial has ended"
    elif _first_pause_of_round(search, arm):
        when = "once every other batch size has a result in this round"
    else:
        when = f"from trial {pause_end(search, arm) + 1} on, or earlier if every other one is set aside"
    return State(Status.SET_ASIDE, f"{failed}; it may be tried again {when}; {readmit} readmits it now")


def _first_pause_of_round(search: Search, arm: Arm) -> bool:
    return search.stage is Stage.PRUNING and len(arm.failed_trials) == FAILURES_TO_SET_ASIDE


def _known(arm: Arm) -> str:
    ended = {
        "reached the target within the bound": arm.num_converged,
        MISSED: arm.num_decided - arm.num_converged,
        "failed": arm.num_failed,
    }
    parts = [f"{count} {what}" for what, count in ended.items() if count]
    if parts:
        return f"its trials: {', '.join(parts)}"
    # Trials from before a reset, excluded ones and failures of a readmitted batch size do not count.
    return "its first trial is running" if arm.running else "no trial of it counts yet"


def _listed(sizes: Sequence[int]) -> str:
    *others, last = map(str, sizes)
    return f"batch sizes {', '.join(others)} and {last}" if others else f"batch size {last}"


def _with_excluded(arms: Sequence[Arm]) -> tuple[Arm, ...]:
    """Returns the arms of which those that do not fit into memory are excluded.

    One trial that ran out of memory excludes its batch size and all larger ones; two are needed where a trial has been
    decided before. Those of smaller batch sizes count as well.
    """
    largest = max((arm.batch_size for arm in arms if arm.num_decided), default=0)
    total, excluded, found = 0, False, []
    for arm in arms:
        total += arm.out_of_memory
        needed = 2 if arm.batch_size <= largest else 1
        excluded = excluded or (arm.out_of_memory > 0 and total >= needed)
        found.append(replace(arm, excluded=excluded))
    return tuple(found)


def _with_failure(arm: Arm, trial: Trial) -> Arm:
    ran_out = trial.end_reason is EndReason.OUT_OF_MEMORY
    return replace(
        arm,
        num_failed=arm.num_failed + 1,
        num_out_of_memory=arm.num_out_of_memory + ran_out,
        failed_cost=arm.failed_cost + (trial.cost or 0.0),
        failed_trials=tuple(sorted((*arm.failed_trials, trial.number)))[-_FAILURES_KEPT:],
        out_of_memory=arm.out_of_memory + ran_out,
    )


def _without_failure(arm: Arm, trial: Trial) -> Arm:
    trials = list(arm.failed_trials)
    if trial.number in trials:
        trials.remove(trial.number)
    num_failed = max(0, arm.num_failed - 1)
    # The difference of two sums may be off by a rounding error; without failures it is exactly 0.
    cost = max(0.0, arm.failed_cost - (trial.cost or 0.0)) if num_failed else 0.0
    return replace(arm, num_failed=num_failed, failed_cost=cost, failed_trials=tuple(trials))
