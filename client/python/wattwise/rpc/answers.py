"""Checks of what a server answers: that it is complete, is about what was asked, and has usable numbers and texts.

A server may be faulty, outdated, another one, or hostile. If an answer fails a check, the call has failed.
"""

from __future__ import annotations

import functools
import math
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp

from wattwise import v1
from wattwise.errors import InvalidAnswerError, WattwiseError
from wattwise.rules import FIRST_SECOND, HEARTBEATS_PER_LEASE, LAST_SECOND, MIN_LEASE_SECONDS
from wattwise.spec import leaves
from wattwise.streams import printable

if TYPE_CHECKING:
    from google.protobuf.descriptor import Descriptor

MOST_WARNINGS = 20
"""The most warnings of one trial; there are fewer reasons for them."""

MOST_PAGES = 100_000
"""The most pages of one list."""
_LONGEST_TEXT = 8_192
"""The length in characters; servers cut their texts to fit into the headers of an answer, which are not larger."""
_LEAST_HEARTBEAT_SECONDS = MIN_LEASE_SECONDS / (HEARTBEATS_PER_LEASE + 1)


def shown(text: str) -> str:
    """Returns a text of the server for logs and terminals: cut if it is very long, without control characters."""
    return printable(text if len(text) <= _LONGEST_TEXT else f"{text[:_LONGEST_TEXT]}…")


def require(holds: bool, fault: str) -> None:
    """Refuses an answer unless something holds.

    Raises:
        InvalidAnswerError: with the fault.
    """
    if not holds:
        raise InvalidAnswerError(fault)


@contextmanager
def naming(server: str, call: str) -> Iterator[None]:
    """Names the server and the call in the error of an invalid answer that the block raises.

    Raises:
        InvalidAnswerError: that of the block.
    """
    try:
        yield
    except InvalidAnswerError as fault:
        raise InvalidAnswerError(f"the server at {server} gave an invalid answer to {call}: {fault}") from None


@contextmanager
def shown_from(server: str) -> Iterator[None]:
    """Blames the server for values of an answer that the block cannot show, such as a missing list.

    Raises:
        InvalidAnswerError: with the place in this program, since the fault may be its own.
    """
    try:
        yield
    except (WattwiseError, UnicodeError):
        raise
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        *_, last = traceback.extract_tb(error.__traceback__)
        where = f"{type(error).__name__} in line {last.lineno} of {Path(last.filename).name}"
        raise InvalidAnswerError(
            f"the server at {server} gave an answer that cannot be shown ({where}: {shown(str(error))}); is it of "
            "another version, or another program?"
        ) from error


def check_times(message: Message) -> None:
    """Checks that all times in a message are valid.

    Raises:
        InvalidAnswerError: if one is not.
    """
    leading = _leading_to_times(message.DESCRIPTOR)
    for field, value in message.ListFields() if leading else ():
        if field.name not in leading:
            continue
        for each in (value,) if isinstance(value, Message) else value:
            if isinstance(each, Timestamp):
                valid = FIRST_SECOND <= each.seconds <= LAST_SECOND and 0 <= each.nanos < 10**9
                require(valid, f"{field.name} is no time")
            else:
                check_times(each)


@functools.cache
def _leading_to_times(kind: Descriptor) -> frozenset[str]:
    """Returns the fields of a message that are times, or may contain some."""
    return frozenset(each.name for each in kind.fields if each.message_type and _has_times(each.message_type, ()))


def _has_times(kind: Descriptor, above: Sequence[Descriptor]) -> bool:
    if kind is Timestamp.DESCRIPTOR:
        return True
    inner = (field.message_type for field in kind.fields if field.message_type is not None)
    return not kind.GetOptions().map_entry and any(
        each not in above and _has_times(each, (*above, kind)) for each in inner
    )


class Pages:
    """Checks that a list which comes in pages ends.

    Args:
        token: the page token of the first request.
    """

    def __init__(self, token: str = "") -> None:
        self._seen = {token}

    def check(self, page: Message) -> None:
        """Checks that the list goes on with a page that was not asked for before, and notes that page.

        Raises:
            InvalidAnswerError: if the pages may never end.
        """
        token: str = page.next_page_token  # type: ignore[attr-defined]
        if not token:
            return
        require(len(token) <= _LONGEST_TEXT, "its page token is too long")
        require(any(not isinstance(value, str | int) for _, value in page.ListFields()), "it is an empty page of more")
        require(token not in self._seen, "its next page is one of those before")
        require(len(self._seen) < MOST_PAGES, f"it has more than {MOST_PAGES:,} pages")
        self._seen.add(token)


def about_job(job_id: str) -> Callable[[Any], None]:
    """Returns a check that an answer has the job of this id."""
    return lambda answer: _check_id(answer.job.spec.job_id, job_id)


def check_registered(job: v1.Job, sent: v1.JobSpec) -> None:
    """Checks a job that was registered: it must have the configuration that was sent, apart from its policy.

    Raises:
        InvalidAnswerError: if it differs, or is incomplete.
    """
    spec = job.spec
    require(job.HasField("spec"), "it has no job")
    known = dict(leaves(spec))
    for path, value in leaves(sent):
        if value is True and path not in known:
            # An empty message, whose fields have their defaults in the answer.
            same = any(each.startswith(f"{path}.") for each in known)
        else:
            same = _plain(known.get(path, value if value == 0 else None)) == _plain(value)
        require(same or path.startswith("policy."), f"its job has another {path} than the job that was registered")
    lease = spec.trial_lease_seconds
    require(lease == 0 or MIN_LEASE_SECONDS <= lease < math.inf, f"its job has the lease {lease:g} s")
    require(not spec.HasField("max_epochs") or spec.max_epochs >= 1, f"its job has max_epochs {spec.max_epochs}")
    require(not math.isnan(spec.target.value), "its job has the target NaN")
    require(0 <= spec.eta_knob <= 1, f"its job has eta_knob {spec.eta_knob:g}")


def _plain(value: object) -> object:
    # The order of batch sizes does not matter.
    return sorted(value) if isinstance(value, Iterable) and not isinstance(value, str) else value


def about_trial(wanted: v1.TrialId) -> Callable[[Any], None]:
    """Returns a check that an answer has this trial."""
    return lambda answer: check_trial(answer.trial, wanted)


def check_trial(trial: v1.Trial, wanted: v1.TrialId) -> None:
    """Checks a trial that was asked for, and shortens its texts.

    Args:
        trial: the trial.
        wanted: its job, and its launch and number if they are known.

    Raises:
        InvalidAnswerError: if it is another one, incomplete, or has unusable numbers.
    """
    found, launch_id, number = trial.id, wanted.launch_id, wanted.trial_number
    _check_id(found.job_id, wanted.job_id)
    require(bool(found.launch_id), "its trial has no launch_id")
    require(not launch_id or found.launch_id == launch_id, "its trial belongs to another launch")
    require(not number or found.trial_number == number, f"its trial has the number {found.trial_number}, not {number}")
    require(trial.batch_size > 0, f"its trial has the batch size {trial.batch_size}")
    require(trial.newest.epoch >= 0, f"its trial has the epoch {trial.newest.epoch}")
    newest = trial.newest
    used = (newest, newest.computed) if newest.HasField("computed") else (newest,)
    for sums in used:
        for name in ("time_seconds", "energy_joules"):
            value = getattr(sums, name)
            require(0 <= value < math.inf, f"its trial has {name} {value:g}")
    trial.reason = shown(trial.reason)
    if trial.HasField("decision_message"):
        trial.decision_message = shown(trial.decision_message)
    _shorten(trial)


def check_dispatched(trial: v1.Trial, spec: v1.JobSpec) -> None:
    """Checks that a trial is one of its job.

    Raises:
        InvalidAnswerError: if it has no number, or the job does not list its batch size.
    """
    require(trial.id.trial_number >= 1, f"its trial has the number {trial.id.trial_number}")
    size, sizes = trial.batch_size, sorted(spec.batch_sizes)
    require(size in sizes, f"its trial has the batch size {size}, which is not one of {', '.join(map(str, sizes))}")


def checked_decision(answer: v1.ReportResultResponse | v1.HeartbeatResponse | v1.StreamResultsResponse) -> v1.Decision:
    """Returns the decision of an answer, with shortened texts.

    Raises:
        InvalidAnswerError: if there is none.
    """
    require(answer.HasField("decision"), "it has no decision")
    decision = answer.decision
    decision.message = shown(decision.message)
    _shorten(decision)
    return decision


def heartbeat_seconds(answer: v1.Trial | v1.Decision) -> float:
    """Returns the pause between two heartbeats that an answer names; infinite if none are needed."""
    if not answer.HasField("heartbeat_interval"):
        return math.inf
    interval = answer.heartbeat_interval
    return max(interval.seconds + interval.nanos / 1e9, _LEAST_HEARTBEAT_SECONDS)


def check_acquired_limit(answer: v1.AcquirePowerLimitResponse) -> None:
    """Checks a power limit and the samples that it comes from.

    Raises:
        InvalidAnswerError: if there is none although the trial has to use it, or a number is unusable.
    """
    if answer.action != v1.POWER_ACTION_USE_LIMIT:
        return
    check_setting(answer.power_setting)
    for name in ("cheapest", "highest"):
        sample: v1.PowerSample = getattr(answer, name)
        check_setting(sample.power_setting)
        usable = 0 < sample.time_seconds < math.inf and 0 <= sample.energy_joules < math.inf and sample.steps > 0
        require(
            usable,
            f"its {name} sample has {sample.time_seconds:g} s, {sample.energy_joules:g} J and {sample.steps} steps",
        )


def check_setting(setting: v1.PowerSetting) -> None:
    """Checks that a setting has a power limit.

    Raises:
        InvalidAnswerError: if it has none, or one that is not above 0 and finite.
    """
    require(setting.HasField("limit_watts_per_gpu"), "it has no power limit")
    watts = setting.limit_watts_per_gpu
    require(0 < watts < math.inf, f"its power limit is {watts:g} W")


def _check_id(found: str, job_id: str) -> None:
    require(bool(found), "it is incomplete")
    require(found == job_id, f"it is about job {shown(found)!r:.100}, not {job_id!r}")


def _shorten(warned: v1.Decision | v1.Trial) -> None:
    del warned.warnings[MOST_WARNINGS:]
    for warning in warned.warnings:
        warning.field, warning.message = shown(warning.field), shown(warning.message)
