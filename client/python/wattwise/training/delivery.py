"""Delivers trials from the spool to the server: each exactly once, since the server knows a trial by its launch id."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from wattwise import v1
from wattwise.errors import (
    InvalidJobSpecError,
    InvalidRequestError,
    InvalidResultError,
    JobDiffersError,
    JobNotFoundError,
    NotPossibleNowError,
    ResourceExhaustedError,
    ServerError,
    ServerUnavailableError,
    TrialDeletedError,
    TrialNotFoundError,
    WattwiseError,
    log,
    warn_once,
)
from wattwise.files import FileError
from wattwise.rpc.address import server_of
from wattwise.rpc.client import Client
from wattwise.training.journal import Journal, TrialRecord

LAUNCH_SECONDS = 1.0
"""How long a launch may take for the delivery of earlier trials."""

_CALL_SECONDS = 30.0

REFUSALS = (
    InvalidJobSpecError,
    InvalidRequestError,
    InvalidResultError,
    JobDiffersError,
    JobNotFoundError,
    NotPossibleNowError,
    TrialNotFoundError,
)
"""What the server answers to a trial that it will never take, as long as nobody changes something.

A token that it does not accept says nothing about the trial.
"""

_FALLBACK = "-fallback"


def fallback_request(launch_id: str) -> str:
    """Returns the launch id of a fallback trial that replaces the unanswered request of its launch."""
    return f"{launch_id}{_FALLBACK}"


def is_refusal(error: WattwiseError) -> bool:
    """Returns whether an error says that the server will never take a measurement: training continues."""
    refusals = (InvalidRequestError, InvalidResultError, NotPossibleNowError)
    return isinstance(error, refusals) and not error.retryable


class Delivery(NamedTuple):
    """What became of the trials in some files.

    Attributes:
        delivered: how many the server took, or does not want because their job was deleted.
        refused: how many it refused.
        failure: an error that left a trial undelivered, but is no refusal; None if there was none.
    """

    delivered: int = 0
    refused: int = 0
    failure: WattwiseError | None = None


def deliver_record(client: Client, record: TrialRecord, timeout: float) -> v1.Trial | None:
    """Delivers one trial, and registers its job if the server does not know it.

    Returns:
        The trial; None if it was deleted with its job, and is not to come back.

    Raises:
        WattwiseError: if it cannot be delivered in time; REFUSALS if the server refused it.
    """
    deadline = time.monotonic() + timeout

    def left() -> float:
        return max(0.0, deadline - time.monotonic())

    try:
        if record.base is not None:
            record = _resumed(client, record, timeout)
        _end_unanswered(client, record, left())
        request = record.request()
        try:
            return client.import_trial(request, timeout=left()).trial
        except JobNotFoundError:
            # Lost with the server's database, or never registered: the server knows which jobs were deleted.
            client.register_job(record.job, timeout=left())
            return client.import_trial(request, timeout=left()).trial
    except TrialDeletedError:
        return None


def _resumed(client: Client, record: TrialRecord, timeout: float) -> TrialRecord:
    """Returns a trial that was continued without the server, with the sums that the server knows of it."""
    try:
        answer = client.get_next_batch_size(record.job.job_id, launch_id=record.launch_id, resume=True, timeout=timeout)
    except (JobNotFoundError, TrialNotFoundError):
        return record
    return record.resumed(answer.trial)


def _end_unanswered(client: Client, record: TrialRecord, timeout: float) -> None:
    """Ends the trial that the server may have dispatched before a launch took its fallback: nobody trains it.

    Raises:
        WattwiseError: if the server does not answer in time.
    """
    launch_id = record.launch_id.removesuffix(_FALLBACK)
    if launch_id == record.launch_id:
        return
    deadline = time.monotonic() + timeout
    with suppress(TrialDeletedError, *REFUSALS):
        # To resume dispatches nothing, and brings back a trial that counts as lost.
        found = client.get_next_batch_size(record.job.job_id, launch_id=launch_id, resume=True, timeout=timeout)
        client.end_trial(found.trial.id, v1.END_REASON_PREEMPTED, timeout=max(0.0, deadline - time.monotonic()))


def find_launch(client: Client, trial: v1.TrialId, timeout: float | None = None) -> v1.Trial | None:
    """Returns the trial that the server has of a launch, without a change; None if the server does not know it.

    Only the launch identifies a trial: after a database was lost or restored, or a job deleted and registered again,
    another launch may have its number.

    Raises:
        TrialDeletedError: if the trial was deleted with its job.
        WattwiseError: if the server does not answer.
    """
    try:
        return client.lookup_trial(trial.job_id, trial.launch_id, timeout=timeout)
    except (JobNotFoundError, TrialNotFoundError):
        return None


def deliver_files(
    client: Client,
    paths: Sequence[Path],
    seconds: float,
    *,
    server: str | None = None,
    refused_before: bool = False,
) -> Delivery:
    """Delivers the trials in these files whose processes have ended, and deletes the files.

    A trial that cannot be delivered now does not keep those behind it from being delivered, unless the server refuses
    the caller, or leaves two calls in a row unanswered.

    Args:
        client: of the server that they are delivered to.
        paths: the files, in the order of delivery.
        seconds: for all of them; what is not delivered by then stays.
        server: the server that they ran for, as the files name it; None is that of the client, "" is any.
        refused_before: whether those that the server has refused before are tried again.
    """
    delivered = refused = unanswered = 0
    failure: WattwiseError | None = None
    wanted = server_of(client.address if server is None else server)
    deadline = time.monotonic() + seconds
    for behind, path in zip(reversed(range(len(paths))), paths, strict=True):
        if time.monotonic() >= deadline:
            break
        journal = opened(path)
        if journal is None:
            continue
        keeps = True
        try:
            of_another = wanted and server_of(journal.record.server) != wanted
            if of_another or (journal.record.refusal and not refused_before):
                continue
            # Reading a large file takes time too.
            left = max(0.0, deadline - time.monotonic())
            trial = deliver_record(client, journal.record, min(left / 2 if behind else left, _CALL_SECONDS))
            keeps = False
            delivered, unanswered = delivered + 1, 0
            if trial is None:
                log.info("the spooled trial in %s is dropped: its job %r was deleted", path, journal.record.job.job_id)
            else:
                log.info("trial %d of job %r, which was spooled, is delivered", trial.id.trial_number, trial.id.job_id)
        except REFUSALS as error:
            refused += 1
            journal.refuse(str(error))
            log.warning(
                "the server refused the spooled trial in %s: %s; `wattwise spool send` tries again, and "
                "`wattwise spool drop` drops it",
                *(path, error),
            )
        except WattwiseError as error:
            log.info("the spooled trial in %s cannot be delivered now: %s", path, error)
            away = isinstance(error, ServerUnavailableError) and not error.reason
            failure, unanswered = error, unanswered + away
            # Of these errors, the next trial may not have one.
            if unanswered > 1 or not isinstance(error, ServerError | ResourceExhaustedError | ServerUnavailableError):
                break
        finally:
            journal.release() if keeps else journal.delete()
    return Delivery(delivered, refused, failure)


def opened(path: Path) -> Journal | None:
    """Opens a journal to deliver it; None if it is in use, or cannot be used, with a warning."""
    try:
        return Journal.open(path)
    except FileError as error:
        warn_once(f"a spooled trial is not delivered: {error}")
    except OSError as error:
        log.debug("%s cannot be delivered: %s", path, error)
    return None
