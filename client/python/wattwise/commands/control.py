"""The actions of `wattwise jobs` that change what a job's search does."""

from __future__ import annotations

import argparse
import shlex

from google.protobuf.message import Message

from wattwise import v1
from wattwise.commands.actions import AddAction, add_batch_size, add_id, plain, positive, print_json
from wattwise.commands.humanize import joules
from wattwise.commands.tables import mark_of, policy, sizes, status_name, with_status
from wattwise.rpc.client import Client

_POLICIES = {
    name.removeprefix("POLICY_").lower().replace("_", "-"): value
    for name, value in v1.Policy.items()
    if value != v1.POLICY_UNSPECIFIED
}
"""By their short names, such as "pruning-gts"."""


def add_control(add: AddAction) -> None:
    """Declares the actions."""
    add_id(add("reset", "begin a job's search again; its trials stay in the history but no longer count", _reset))
    for name, text, excluded in (
        ("exclude-trial", "ignore a trial whose measurements are wrong; the search is rebuilt without it", True),
        ("include-trial", "count a trial again that was excluded; the search is rebuilt with it", False),
    ):
        parser = add(name, text, _set_excluded)
        parser.set_defaults(excluded=excluded)
        add_id(parser)
        parser.add_argument("trial_number", type=positive, metavar="N", help="its number in `wattwise jobs trials ID`")
    for name, text, status in (
        ("ban", "never choose a batch size, until it is allowed again", v1.BATCH_SIZE_STATUS_BANNED),
        (
            "allow",
            "allow a batch size again that was banned, pinned, pruned, set aside or out of memory",
            v1.BATCH_SIZE_STATUS_ALLOWED,
        ),
        ("pin", "give every launch this batch size, until it is unpinned", v1.BATCH_SIZE_STATUS_PINNED),
    ):
        parser = add(name, text, _set_state)
        parser.set_defaults(status=status)
        add_id(parser)
        add_batch_size(parser)
    add_id(add("unpin", "let the search choose again; allows the batch size that is pinned", _unpin))
    for name, text, paused in (
        ("pause", "pause a job's search: launches get the best known batch size, and nothing is tried", True),
        ("resume", "let a paused search go on", False),
    ):
        parser = add(name, text, _set_paused)
        parser.set_defaults(paused=paused)
        add_id(parser)
    add_id(add("baseline", "give the next launch the default batch size, to compare with", _baseline))
    parser = add("set-policy", "change a job's policy; its search is rebuilt from its trials", _set_policy)
    add_id(parser)
    parser.add_argument("policy", choices=_POLICIES, metavar="POLICY", help=f"one of {', '.join(_POLICIES)}")


def _outlook(job: v1.Job) -> str:
    """What the job's next launches get, in a sentence."""
    pinned = with_status(job, v1.BATCH_SIZE_STATUS_PINNED)
    if pinned:
        return f"Every launch gets batch size {sizes(pinned)}."
    if job.advice:
        return f"{job.advice[0].upper()}{job.advice[1:]}."
    best = ""
    if job.HasField("min_cost"):
        best = f"; cheapest so far: {joules(job.min_cost)}{mark_of(job)} at batch size {job.min_cost_batch_size}"
    if job.paused:
        return f"Launches get the best known batch size, or the default {job.spec.default_batch_size}{best}."
    return f"Launches choose from batch sizes {sizes(job.surviving_batch_sizes)}{best}."


def _reset(client: Client, args: argparse.Namespace) -> int:
    job = client.reset_job(args.job_id)
    return _answer(
        args, job, job, f"Reset {args.job_id}: its search begins again, without its {job.num_trials} earlier trials."
    )


def _set_excluded(client: Client, args: argparse.Namespace) -> int:
    trial = v1.TrialId(job_id=args.job_id, trial_number=args.trial_number)
    answer = client.set_trial_excluded(trial, excluded=args.excluded)
    what = "Excluded" if answer.trial.excluded else "Included"
    text = f"{what} trial {args.trial_number} of {args.job_id}, with batch size {answer.trial.id.batch_size}."
    return _answer(args, answer, answer.job, text)


def _set_state(client: Client, args: argparse.Namespace) -> int:
    return _state_answer(args, client.set_batch_size_state(args.job_id, args.batch_size, args.status), args.batch_size)


def _unpin(client: Client, args: argparse.Namespace) -> int:
    job = client.get_job(args.job_id)
    pinned = with_status(job, v1.BATCH_SIZE_STATUS_PINNED)
    if not pinned:
        return _answer(args, job, job, f"No batch size of {args.job_id} is pinned.")
    job = client.set_batch_size_state(args.job_id, pinned[0], v1.BATCH_SIZE_STATUS_ALLOWED)
    return _state_answer(args, job, pinned[0])


def _set_paused(client: Client, args: argparse.Namespace) -> int:
    job = client.set_job_paused(args.job_id, paused=args.paused)
    resume = f"; `wattwise jobs resume {shlex.quote(args.job_id)}` lets its search go on" if job.paused else ""
    return _answer(args, job, job, f"{'Paused' if job.paused else 'Resumed'} {args.job_id}{resume}.")


def _baseline(client: Client, args: argparse.Namespace) -> int:
    job = client.request_baseline(args.job_id)
    waits = job.paused or with_status(job, v1.BATCH_SIZE_STATUS_PINNED)
    when = "once the search chooses again" if waits else "in the next launch"
    text = f"Requested a baseline of {args.job_id}: batch size {job.spec.default_batch_size}, {when}."
    return _answer(args, job, job, text)


def _set_policy(client: Client, args: argparse.Namespace) -> int:
    job = client.set_job_policy(args.job_id, _POLICIES[args.policy])
    return _answer(args, job, job, f"{args.job_id} has the policy {policy(job.spec)}.")


def _state_answer(args: argparse.Namespace, job: v1.Job, batch_size: int) -> int:
    (state,) = (state for state in job.batch_size_states if state.batch_size == batch_size)
    return _answer(args, job, job, f"Batch size {batch_size} of {args.job_id}: {_state_text(state)}.")


def _state_text(state: v1.BatchSizeState) -> str:
    """The state of a batch size, with its reason unless that begins with the state."""
    name = status_name(state)
    return state.reason if state.reason.startswith(name) else f"{name}; {state.reason}"


def _answer(args: argparse.Namespace, message: Message, job: v1.Job, text: str) -> int:
    if args.json:
        print_json(plain(message))
    else:
        print(f"{text} {_outlook(job)}")  # noqa: T201 - the command's answer
    return 0
