"""The figures that are exported as metrics: of all jobs together, and of a few by their ids."""

from __future__ import annotations

from collections.abc import Mapping

from wattwise_server.domain import Totals
from wattwise_server.store.base import JobList, JobOrder, Store
from wattwise_server.usecases.statistics import Statistics

OTHER = "other"
"""Stands for all jobs that are not named, a job with this id among them."""


async def figures(store: Store, statistics: Statistics, num_named: int) -> tuple[Totals, Mapping[str, Totals]]:
    """The figures of all jobs, and those of the most recently active ones by id; the rest are together under OTHER.

    The second part adds up to the first one. It is empty without `num_named`.
    """
    by_key = dict(await statistics.by_job())
    total = await statistics.together(by_key.values())
    if not num_named or not by_key:
        return total, {}
    # Two more: one may be called OTHER, and the next one tells when one of the others was last active.
    wanted = JobList(order=JobOrder.LAST_ACTIVITY, with_activity=True)
    listed = [job for job in await store.jobs(wanted, 0, num_named + 2) if job.key in by_key]
    times = {job.key: job.activity.last_time for job in listed if job.activity is not None}
    named = [job for job in listed if job.job.spec.job_id != OTHER][:num_named]
    found = {job.job.spec.job_id: by_key.pop(job.key)._replace(last_time=times.get(job.key)) for job in named}
    if by_key:
        rest = await statistics.together(by_key.values())
        newest = max(filter(None, (times.get(key) for key in by_key)), default=None)
        found[OTHER] = rest._replace(last_time=newest)
    return total, found
