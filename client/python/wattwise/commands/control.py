"""The actions of `wattwise jobs` that change what a job's search does, or delete the job."""

from __future__ import annotations

import argparse
import shlex
from contextlib import suppress
from typing import TypeAlias

from wattwise import v1
from wattwise.commands.actions import (
    Handler,
    add_batch_size,
    add_id,
    add_trial_number,
    add_yes,
    plain,
    print_json,
    refusal,
    whole_number,
)
from wattwise.commands.main import say
from wattwise.drafts import POLICIES, Policy
from wattwise.errors import ServerUnavailableError, WattwiseError
from wattwise.presentation.quantities import joules, marked
from wattwise.presentation.sentences import next_launch, number_of
from wattwise.presentation.states import baseline_waits, mark_of, policy_with_parameters, sizes, status_name, stuck
from wattwise.rpc.client import Client
from wattwise.rules import BASELINE_ADVICE, MAX_INT32, can_be_scheduled
from wattwise.spec import policy_spec


def add_reset(parser: argparse.ArgumentParser) -> None:
    """Declares `reset`."""
    _add(parser, _reset)
    add_yes(parser)


def add_exclude_trial(parser: argparse.ArgumentParser, *, excluded: bool = True) -> None:
    """Declares `exclude-trial`."""
    _add(parser, _set_excluded, excluded=excluded)
    add_trial_number(parser)


def add_include_trial(parser: argparse.ArgumentParser) -> None:
    """Declares `include-trial`."""
    add_exclude_trial(parser, excluded=False)


def add_ban(parser: argparse.ArgumentParser, *, banned: bool = True) -> None:
    """Declares `ban`."""
    _add(parser, _set_banned, banned=banned)
    add_batch_size(parser)


def add_unban(parser: argparse.ArgumentParser) -> None:
    """Declares `unban`."""
    add_ban(parser, banned=False)


def add_readmit(parser: argparse.ArgumentParser) -> None:
    """Declares `readmit`."""
    _add(parser, _readmit)
    add_batch_size(parser)


def add_pin(parser: argparse.ArgumentParser) -> None:
    """Declares `pin`."""
    _add(parser, _pin)
    add_batch_size(parser)


def add_unpin(parser: argparse.ArgumentParser) -> None:
    """Declares `unpin`."""
    _add(parser, _unpin)


def add_pause(parser: argparse.ArgumentParser) -> None:
    """Declares `pause`."""
    _add(parser, _set_paused, paused=True)


def add_resume(parser: argparse.ArgumentParser) -> None:
    """Declares `resume`."""
    _add(parser, _set_paused, paused=False)


def add_baseline(parser: argparse.ArgumentParser) -> None:
    """Declares `baseline`."""
    _add(parser, _baseline)
    every = "instead, give one launch in N the default batch size from now on; 0 ends that"
    parser.add_argument("--every", type=_every, metavar="N", help=every)


def add_set_policy(parser: argparse.ArgumentParser) -> None:
    """Declares `set-policy`."""
    _add(parser, _set_policy)
    parser.add_argument("policy", type=_policy, metavar="POLICY", help=f"one of {', '.join(POLICIES)}")
    window = "number of newest trials that count: of the job, or of each batch size; 0: all"
    parser.add_argument("--window-size", type=_window, metavar="N", help=window)


def add_delete(parser: argparse.ArgumentParser) -> None:
    """Declares `delete`."""
    _add(parser, _delete)
    add_yes(parser)


def _add(parser: argparse.ArgumentParser, handler: Handler, **defaults: object) -> None:
    parser.set_defaults(handler=handler, **defaults)
    add_id(parser)


_BatchSizeAnswer: TypeAlias = (
    v1.SetBatchSizeBannedResponse | v1.SetPinnedBatchSizeResponse | v1.ReadmitBatchSizeResponse
)
"""An answer about a batch size."""
_Answer: TypeAlias = (
    v1.GetJobResponse
    | v1.ResetJobResponse
    | v1.SetTrialExcludedResponse
    | _BatchSizeAnswer
    | v1.SetJobPausedResponse
    | v1.RequestBaselineResponse
    | v1.SetBaselineEveryResponse
    | v1.SetJobPolicyResponse
)
"""An answer with a job and its details."""


def _policy(text: str) -> Policy:
    """Returns the policy of a name, which may be typed in any case and with hyphens."""
    name = text.lower().replace("-", "_")
    for policy in POLICIES:
        if policy == name:
            return policy
    raise argparse.ArgumentTypeError(f"{text!r} is not a policy; use one of {', '.join(POLICIES)}")


def _every(text: str) -> int:
    number = whole_number(text)
    if number is None or not can_be_scheduled(number) or number > MAX_INT32:
        raise argparse.ArgumentTypeError(
            f"{text!r} is invalid; {BASELINE_ADVICE} (for every launch: `wattwise jobs pin`)"
        )
    return number


def _window(text: str) -> int:
    number = whole_number(text)
    if number is None or number > MAX_INT32:
        raise argparse.ArgumentTypeError(f"{text!r} is invalid; use a number of trials, or 0 for all")
    return number


def _outlook(client: Client, job: v1.Job, details: v1.JobDetails) -> str:
    """Returns what the job's next launches get, in sentences."""
    pinned = job.HasField("pinned_batch_size")
    if stuck(job) and not pinned:
        return f"{details.advice[0].upper()}{details.advice[1:]}."
    best = ""
    if job.HasField("best_known_cost") and not pinned:
        cost = marked(joules, mark_of(job))(job.best_known_cost)
        best = f" The lowest expected cost of a model is {cost}, with batch size {job.best_known_batch_size}."
    baseline = ""
    if job.baseline_requested and (waits := baseline_waits(job, details)):
        baseline = f" A baseline with batch size {job.spec.default_batch_size} waits {waits}."
    upcoming = "What the next launch gets is not known now."
    # The job was changed, whatever happens to this call.
    with suppress(WattwiseError):
        upcoming = f"The next launch gets {next_launch(client.preview_next(job.spec.job_id).choices)}."
    return f"{upcoming}{baseline}{best}"


def _reset(client: Client, args: argparse.Namespace) -> int:
    before = _known(client, args.job_id)

    def question() -> str:
        return (
            f"Its {number_of(before.num_trials, 'trial')} will never count again. To keep what they tell, register a "
            f"new job that names {args.job_id} in prior_job_ids instead. Reset {args.job_id}?"
        )

    if (status := refusal(args, "wattwise jobs reset", f"reset {args.job_id}", question)) is not None:
        return status
    answer = client.reset_job(args.job_id)
    job = answer.job
    without = "and it had no trials yet"
    if job.HasField("reset_after"):
        without = f"without its {number_of(job.reset_after, 'earlier trial')}"
    return _answer(
        client, args, answer, f"Reset {args.job_id}: its search begins again, {without}.{_withdrawn(before, job)}"
    )


def _known(client: Client, job_id: str) -> v1.Job:
    """Returns the job; of one whose search this server cannot read, which a reset is for, only what lists have."""
    try:
        return client.get_job(job_id).job
    except ServerUnavailableError:
        listed = client.jobs(job_id_prefix=job_id, order=v1.JOB_ORDER_ID, page_size=1)
        if (listing := next(listed, None)) is None or listing.job.spec.job_id != job_id:
            raise
        return listing.job


def _set_excluded(client: Client, args: argparse.Namespace) -> int:
    trial = v1.TrialId(job_id=args.job_id, trial_number=args.trial_number)
    before = client.get_trial(trial).trial.excluded
    answer = client.set_trial_excluded(trial, excluded=args.excluded)
    what = "excluded" if args.excluded else "included"
    size = answer.trial.batch_size
    text = f"{what.capitalize()} trial {args.trial_number} of {args.job_id}, with batch size {size}."
    if answer.trial.excluded is not args.excluded:
        text = (
            f"Trial {args.trial_number} of {args.job_id} does not count, because the search was reset after trial "
            f"{answer.job.reset_after}: nothing has changed."
        )
    elif before is args.excluded:
        text = f"In {args.job_id}, trial {args.trial_number} is {what} already: nothing has changed."
    return _answer(client, args, answer, text)


def _set_banned(client: Client, args: argparse.Namespace) -> int:
    before = client.get_job(args.job_id)
    answer = client.set_batch_size_banned(args.job_id, args.batch_size, banned=args.banned)
    return _state_answer(client, args, before, answer, args.batch_size)


def _readmit(client: Client, args: argparse.Namespace) -> int:
    before = client.get_job(args.job_id)
    answer = client.readmit_batch_size(args.job_id, args.batch_size)
    return _state_answer(client, args, before, answer, args.batch_size)


def _pin(client: Client, args: argparse.Namespace) -> int:
    before = client.get_job(args.job_id)
    answer = client.set_pinned_batch_size(args.job_id, args.batch_size)
    return _state_answer(client, args, before, answer, args.batch_size)


def _unpin(client: Client, args: argparse.Namespace) -> int:
    before = client.get_job(args.job_id)
    answer = client.set_pinned_batch_size(args.job_id, None)
    if not before.job.HasField("pinned_batch_size"):
        return _answer(client, args, answer, f"No batch size of {args.job_id} is pinned: nothing has changed.")
    return _state_answer(client, args, before, answer, before.job.pinned_batch_size)


def _set_paused(client: Client, args: argparse.Namespace) -> int:
    before = client.get_job(args.job_id).job.paused
    answer = client.set_job_paused(args.job_id, paused=args.paused)
    job = answer.job
    if before is args.paused:
        state = "paused already" if job.paused else "not paused"
        return _answer(client, args, answer, f"{args.job_id} is {state}: nothing has changed.")
    resume = f"; `wattwise jobs resume {shlex.quote(args.job_id)}` lets its search go on" if job.paused else ""
    return _answer(client, args, answer, f"{'Paused' if job.paused else 'Resumed'} {args.job_id}{resume}.")


def _baseline(client: Client, args: argparse.Namespace) -> int:
    if args.every is not None:
        return _schedule(client, args)
    before = client.get_job(args.job_id).job.baseline_requested
    answer = client.request_baseline(args.job_id)
    job = answer.job
    text = f"Requested a baseline of {args.job_id}: batch size {job.spec.default_batch_size}."
    if before:
        text = f"A baseline of {args.job_id} is requested already: nothing has changed."
    return _answer(client, args, answer, text)


def _schedule(client: Client, args: argparse.Namespace) -> int:
    before = client.get_job(args.job_id).job.baseline_every
    answer = client.set_baseline_every(args.job_id, args.every)
    job = answer.job
    default = job.spec.default_batch_size
    schedule = f"one launch in {job.baseline_every} of {args.job_id} is a baseline"
    if before == job.baseline_every:
        now = f"Already {schedule}" if before else f"{args.job_id} has no scheduled baselines"
        text = f"{now}: nothing has changed."
    elif job.HasField("baseline_every"):
        waits = baseline_waits(job, answer.details)
        text = f"From now on, {schedule}, with its default batch size {default}"
        text += f", but not {waits}." if waits else "."
    else:
        text = f"{args.job_id} has no scheduled baselines any more."
    return _answer(client, args, answer, text)


def _set_policy(client: Client, args: argparse.Namespace) -> int:
    before = client.get_job(args.job_id).job.spec.policy
    answer = client.set_job_policy(args.job_id, policy_spec(args.policy, window_size=args.window_size))
    job = answer.job
    already = " already: nothing has changed" if before == job.spec.policy else ""
    return _answer(client, args, answer, f"{args.job_id} has the policy {policy_with_parameters(job.spec)}{already}.")


def _delete(client: Client, args: argparse.Namespace) -> int:
    before = _known(client, args.job_id)

    def question() -> str:
        trials = f" and its {number_of(before.num_trials, 'trial')}" if before.num_trials else ", which has no trials"
        return f"Delete {args.job_id}{trials}?"

    if (status := refusal(args, "wattwise jobs delete", f"delete {args.job_id}", question)) is not None:
        return status
    response = client.delete_job(args.job_id, create_time=before.create_time)
    if args.json:
        print_json(plain(response))
    else:
        say(f"Deleted {args.job_id}; running trials stopped: {response.num_stopped_trials}.")
    return 0


def _state_answer(
    client: Client, args: argparse.Namespace, before: v1.GetJobResponse, answer: _BatchSizeAnswer, batch_size: int
) -> int:
    known = {state.batch_size: state for state in before.details.batch_size_states}
    (state,) = (state for state in answer.details.batch_size_states if state.batch_size == batch_size)
    if state == known[batch_size]:
        text = f"Batch size {batch_size} of {args.job_id} is {status_name(state)}: nothing has changed."
        return _answer(client, args, answer, text)
    text = f"Batch size {batch_size} of {args.job_id} {_state_text(known[batch_size], state)}."
    back = [
        other.batch_size
        for other in answer.details.batch_size_states
        if other.batch_size != batch_size
        and (known[other.batch_size].status, other.status)
        == (v1.BATCH_SIZE_STATUS_OUT_OF_MEMORY, v1.BATCH_SIZE_STATUS_AVAILABLE)
    ]
    if back:
        text += f" So may {sizes(back)}: what is known of memory no longer rules them out."
    pinned = before.job.pinned_batch_size
    if pinned and answer.job.pinned_batch_size not in (0, pinned):
        text += f" Batch size {pinned} is no longer pinned."
    return _answer(client, args, answer, text + _withdrawn(before.job, answer.job))


def _withdrawn(before: v1.Job, job: v1.Job) -> str:
    if not before.baseline_requested or job.baseline_requested:
        return ""
    return f" The baseline that was requested, with batch size {job.spec.default_batch_size}, is withdrawn."


def _state_text(before: v1.BatchSizeState, state: v1.BatchSizeState) -> str:
    """Returns what is true of a batch size now, and what is known of it."""
    if state.pinned and state.banned and not before.banned:
        return f"is banned, which takes effect once it is unpinned; it is {state.reason}"
    if before.pinned and not state.pinned:
        return f"is no longer pinned; {state.reason}"
    if before.banned and not state.banned:
        return f"is no longer banned; {state.reason}"
    if state.pinned or state.banned:
        return f"is {state.reason}"
    if state.status == v1.BATCH_SIZE_STATUS_AVAILABLE:
        return f"may be chosen again; {state.reason}"
    return f"is {status_name(state)}; {state.reason}"


def _answer(client: Client, args: argparse.Namespace, answer: _Answer, text: str) -> int:
    if args.json:
        print_json(plain(answer))
    else:
        say(f"{text} {_outlook(client, answer.job, answer.details)}")
    return 0
