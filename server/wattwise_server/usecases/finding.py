"""Finds the job and the trial that a call names, or refuses the call."""

from __future__ import annotations

from datetime import datetime

from wattwise_server.domain import Job, Trial, TrialId
from wattwise_server.errors import (
    InvalidRequestError,
    JobNotFoundError,
    TrialDeletedError,
    TrialNotFoundError,
    Violation,
    jobs_command,
)
from wattwise_server.store.transactions import Transaction


def job_id_faults(job_id: str) -> list[Violation]:
    """Returns what is wrong with the id of a job that a request names."""
    return [] if job_id else [Violation("job_id", "is empty; use the id of a job")]


def check_job_id(job_id: str) -> str:
    """Returns the id of a job that a request names.

    Raises:
        InvalidRequestError: the id is empty.
    """
    if faults := job_id_faults(job_id):
        raise InvalidRequestError(*faults)
    return job_id


def find_job(tx: Transaction, job_id: str, *, to_register: bool = False) -> Job:
    """Finds the job of a transaction.

    Args:
        tx: The transaction.
        job_id: The job.
        to_register: Whether the caller is one that registers the job if it is missing.

    Raises:
        InvalidRequestError: the id is empty.
        JobNotFoundError: the job does not exist.
    """
    check_job_id(job_id)
    if tx.job is None:
        raise JobNotFoundError(job_id, to_register=to_register)
    return tx.job


def find_running_trial(tx: Transaction, key: TrialId) -> tuple[Job, Trial] | None:
    """Finds a running trial with its job, which is what almost every call names; None in every other case."""
    job, trial = tx.job, tx.running_trial(key.trial_number)
    if job is None or trial is None or trial.launch_id != key.launch_id:
        return None
    return job, trial


async def find_trial(tx: Transaction, key: TrialId) -> tuple[Job, Trial]:
    """Finds a trial with its job.

    Raises:
        JobNotFoundError, TrialNotFoundError: there is no such trial.
        TrialDeletedError: it was deleted with its job.
    """
    trial = await tx.trial(key.trial_number) if key.trial_number else None
    if key.launch_id and (trial is None or trial.launch_id != key.launch_id):
        job, trial = await find_launch(tx, key)
        if not key.trial_number:
            return job, trial
        why = (
            f"the trial of launch {key.launch_id!r} of job {key.job_id!r} has the number {trial.number}, not "
            f"{key.trial_number}; pass the trial id that the server returned"
        )
        raise TrialNotFoundError(*key, why)
    job = find_job(tx, key.job_id)
    if trial is None:
        listed = f"{jobs_command('trials', key.job_id)} lists them"
        last = f"its trials are 1 to {job.num_trials}; {listed}" if job.num_trials > 1 else "it has one trial, 1"
        why = f"job {key.job_id!r} has no trial {key.trial_number}: {last if job.num_trials else 'it has none yet'}"
        raise TrialNotFoundError(*key, why)
    return job, trial


async def find_launch(tx: Transaction, key: TrialId, *, to_resume: bool = False) -> tuple[Job, Trial]:
    """Finds the trial of a launch with its job, whatever its number.

    Args:
        tx: The transaction.
        key: The trial.
        to_resume: Whether the caller resumes the trial, and could start a new one instead.

    Raises:
        JobNotFoundError, TrialNotFoundError: there is no such trial.
        TrialDeletedError: it was deleted with its job.
    """
    trial = await tx.trial_of_launch(key.launch_id)
    if trial is None:
        await check_not_deleted(tx, key.job_id, key.launch_id)
    job = find_job(tx, key.job_id, to_register=to_resume)
    if trial is None:
        why = (
            f"job {key.job_id!r} has no trial of launch {key.launch_id!r}; pass the launch_id that the trial "
            f"was dispatched for{' or, to get a new trial, omit resume' if to_resume else ''}"
        )
        raise TrialNotFoundError(*key, why)
    return job, trial


async def check_not_deleted(tx: Transaction, job_id: str, launch_id: str, started: datetime | None = None) -> None:
    """Raises TrialDeletedError if a launch was deleted with its job; `started` is that of `was_launch_deleted`."""
    if await tx.was_launch_deleted(launch_id, started):
        raise TrialDeletedError(job_id, launch_id)


def batch_size_fault(job: Job, batch_size: int) -> str | None:
    """Returns what is wrong with a batch size; None if the job has it."""
    if batch_size in job.spec.batch_sizes:
        return None
    return f"{batch_size} is not a batch size of this job; use one of {', '.join(map(str, job.spec.batch_sizes))}"
