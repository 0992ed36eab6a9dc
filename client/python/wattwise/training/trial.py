"""The trial that a trainer was assigned."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

from wattwise import v1
from wattwise.drafts import job_draft
from wattwise.rules import ResolvedJob, with_defaults
from wattwise.training.split import GlobalBatch


def trial_name(job_id: str, number: int) -> str:
    """Returns a trial's name in messages; a trial on the fallback batch size has no number yet."""
    return f"{f'trial {number}' if number else 'the fallback trial'} of job {job_id!r}"


@dataclass(frozen=True)
class Trial:
    """A trial, as a trainer reads it.

    Attributes:
        job_id: its job.
        number: its number in the job; 0 if it trains on the fallback batch size, so that the server numbers it later.
        launch_id: its launch, which names its calls in the server's log and in errors.
        batch_size: the global batch size to train with.
        reason: one sentence on why the server chose this batch size, or why it is the fallback.
        monitor_kind: what measures the trial, such as "nvml+rapl"; "estimate" if nothing is measured.
        rank: this process among the ranks, from 0.
        world_size: the number of ranks; 1 without `torch.distributed`.
        job: the configuration of the job with all defaults filled in.
    """

    job_id: str
    number: int
    launch_id: str
    batch_size: int
    reason: str
    monitor_kind: str
    rank: int
    world_size: int
    job: ResolvedJob = field(repr=False)

    @property
    def name(self) -> str:
        """The trial in messages, such as "trial 7 of job 'mnist-nightly'"."""
        return trial_name(self.job_id, self.number)

    @property
    def fallback(self) -> bool:
        """Whether the server did not choose the batch size; it gets the trial once it is over."""
        return self.number == 0

    @property
    def global_batch(self) -> GlobalBatch:
        """The trial's batch size and those of its job, for splitting it over devices."""
        return GlobalBatch(self.batch_size, self.job.batch_sizes)

    @property
    def per_rank_batch_size(self) -> int:
        """This rank's share of the global batch size.

        Raises:
            TrainerSetupError: if the number of ranks does not divide the batch size; names the sizes that it divides.
        """
        return self.global_batch.share(self.world_size, "ranks")


@dataclass(frozen=True)
class TrialInfo:
    """The messages of a trial and of its job, and this process's place among the ranks, as of `get_batch_size`.

    Attributes:
        snapshot: the trial as the server had it; with number 0 if it trains on the fallback batch size.
        job: the job as the server had it; `job.spec` has all defaults filled in. If the server could not be reached,
            only `job.spec` is set.
        reason: see `Trial`.
        monitor_kind: see `Trial`.
        rank: see `Trial`.
        world_size: see `Trial`.
    """

    snapshot: v1.Trial
    job: v1.Job
    reason: str
    monitor_kind: str
    rank: int = 0
    world_size: int = 1

    @property
    def id(self) -> v1.TrialId:
        """The trial's job, launch and number."""
        return self.snapshot.id

    @property
    def batch_size(self) -> int:
        """The batch size to train with."""
        return self.snapshot.batch_size

    @cached_property
    def trial(self) -> Trial:
        """The trial as a trainer reads it."""
        return Trial(
            job_id=self.id.job_id,
            number=self.id.trial_number,
            launch_id=self.id.launch_id,
            batch_size=self.batch_size,
            reason=self.reason,
            monitor_kind=self.monitor_kind,
            rank=self.rank,
            world_size=self.world_size,
            job=with_defaults(job_draft(self.job.spec)),
        )
