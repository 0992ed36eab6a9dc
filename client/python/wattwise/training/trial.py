"""What a trainer knows about the trial that it was assigned."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from wattwise import v1
from wattwise.training.resume import Progress
from wattwise.training.split import GlobalBatch


@dataclass(frozen=True)
class TrialInfo:
    """The trial, its job, and this process's place among the ranks, as of `get_batch_size`.

    Attributes:
        snapshot: the trial as the server had it; with number 0 if it trains on the fallback batch size.
        job: the job as the server had it; `job.spec` has all defaults filled in. If the server could not be reached,
            only `job.spec` is set.
        reason: one sentence on why the server chose this batch size, or why it is the fallback.
        monitor_kind: what measures the trial, such as "nvml+rapl"; "estimate" if nothing is measured.
        rank: this process among the ranks, from 0.
        world_size: the number of ranks; 1 without `torch.distributed`.
    """

    snapshot: v1.Trial
    job: v1.Job
    reason: str
    monitor_kind: str
    rank: int = 0
    world_size: int = 1

    @property
    def id(self) -> v1.TrialId:
        """The trial's job, launch and number; the launch names its calls in the server's log and in errors."""
        return self.snapshot.id

    @property
    def batch_size(self) -> int:
        """The batch size to train with."""
        return self.snapshot.batch_size

    @property
    def fallback(self) -> bool:
        """Whether the server did not choose the batch size; it gets the trial once it is over."""
        return self.snapshot.id.trial_number == 0

    @property
    def global_batch(self) -> GlobalBatch:
        """The trial's batch size and those of its job, for splitting it over devices."""
        return GlobalBatch(self.batch_size, tuple(self.job.spec.batch_sizes))

    @property
    def per_rank_batch_size(self) -> int:
        """This rank's share of the global batch size.

        Raises:
            TrainerSetupError: if the number of ranks does not divide the batch size; names the sizes that it divides.
        """
        return self.global_batch.share(self.world_size, "ranks")


class StartedTrial(NamedTuple):
    """A trial as rank 0 passes it to all ranks.

    Attributes:
        info: the trial, from rank 0's point of view.
        progress: where training starts.
        decision: the decision, if the trial was resumed and has been decided in the meantime.
    """

    info: TrialInfo
    progress: Progress = Progress()
    decision: v1.Decision | None = None
