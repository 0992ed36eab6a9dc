"""A job and its trials as a call names them, and the refusals of what there is not."""

from __future__ import annotations

from wattwise_server.domain import Decision, Job, Trial, TrialKey
from wattwise_server.errors import JobNotFoundError, TrialNotFoundError
from wattwise_server.policy.stopping import decision, priced
from wattwise_server.store.base import Transaction
from wattwise_server.usecases.monitors import with_monitor


def job_of(tx: Transaction, job_id: str) -> Job:
    """The job of a transaction.

    Raises:
        JobNotFoundError: there is none.
    """
    if tx.job is None:
        raise JobNotFoundError(job_id)
    return tx.job


def running_trial_of(tx: Transaction, key: TrialKey) -> tuple[Job, Trial] | None:
    """A running trial with its job, as almost every call is about; None for whatever else there may be."""
    job, trial = tx.job, tx.running_trial(key.trial_number)
    if job is None or trial is None or key.batch_size not in (0, trial.batch_size):
        return None
    return job, trial


async def trial_of(tx: Transaction, key: TrialKey) -> tuple[Job, Trial]:
    """A trial with its job.

    Raises:
        JobNotFoundError, TrialNotFoundError: there is no such trial.
    """
    job = job_of(tx, key.job_id)
    trial = await tx.trial(key.trial_number)
    if trial is None:
        why = f"job {key.job_id!r} has no trial {key.trial_number}"
    elif key.batch_size not in (0, trial.batch_size):
        why = f"trial {key.trial_number} of job {key.job_id!r} has batch size {trial.batch_size}, not {key.batch_size}"
    else:
        return job, trial
    raise TrialNotFoundError(key.job_id, key.trial_number, key.batch_size, why)


def priced_in(job: Job, trial: Trial) -> Trial:
    """A trial with its cost by the bound of now, while it has none of its own."""
    return priced(job.spec, job.search.min_cost, trial)


def decision_in(job: Job, trial: Trial) -> Decision:
    """What the trainer of a trial is to be told."""
    return with_monitor(trial, decision(job.spec, job.search.min_cost, trial))
