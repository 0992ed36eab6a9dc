"""The storage contract.

It allows two kinds of backend: an embedded one with a single owner, and one that any number of servers share. Both
cache jobs and commit in groups. Callers see one difference: a block of a shared one may end in a `ConflictError`.

**Atomicity.** All reads and writes of one job happen inside `transaction(job_id)`. Transactions of one job are
serialized; those of different jobs do not wait for each other. When a block exits without an exception, everything it
saved is durable: it survives `kill -9` and power loss. When the exit raises, nothing that it saved is visible. A block
left by an exception changes nothing. A block that only read exits once everything it read is durable, so no answer
depends on data that a crash could lose.

**Conflicts.** When another server has changed the job since this one read it, the exit raises `ConflictError`, nothing
is saved and no observer is notified: the use case runs again from its start (`usecases.retries`). So does a block that
only read, or that refuses, which would otherwise answer from an old version.

**Events.** The observer is notified of recorded events after the commit and before the block exits, in the order of
commits, but not of those of a block that changed nothing. Work that follows up runs afterwards, when the job is free,
and before the block exits.

**Cancellation.** Cancelling a caller that waits for durability does not affect the transaction: it commits or fails on
its own.

**Errors.** `StorageUnavailableError` when the storage cannot be read or written, or when it is unknown whether a commit
succeeded; the same call may succeed later. Anything else that is raised is a bug.

**Time** (`Store.clock`) is that of the database: the same on all servers, whatever their clocks say. It goes back only
if the clock of a database that several servers share was set back.

**Leases** (`Trial.lease_expire_time`) need not be durable: after a time without any server every running trial gets a
full one, also if the servers were suspended. What is known of the lease of a trial that another server serves may be
too early, so that `lease_expired` is the way to ask: the commit then fails if the lease was renewed.

**Lists.** `jobs`, `trials` and `events` return durable data, each call as of one moment. A page begins behind the
place of the last item of the page before.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from enum import Enum
from typing import NamedTuple, TypeAlias

from wattwise.rules import EndReason, TrialStatus

from wattwise_server.domain import Moments, PowerSample, RecordedEvent, Trial, TrialOrigin, Usage

Place: TypeAlias = tuple[int, ...]
"""Where an item is in a list; empty is before the first one."""

JobPlace: TypeAlias = int | str
"""Where a job is in a list: by its key or its id, or how many jobs come up to it; 0 is before the first one."""


class JobOrder(Enum):
    """The order of a list of jobs."""

    OLDEST = "OLDEST"
    NEWEST = "NEWEST"
    LAST_ACTIVITY = "LAST_ACTIVITY"
    ATTENTION = "ATTENTION"
    ID = "ID"


class JobState(Enum):
    """What a list of jobs is limited to."""

    RUNNING = "RUNNING"
    IDLE = "IDLE"
    NEW = "NEW"
    HELD = "HELD"
    ATTENTION = "ATTENTION"


class JobList(NamedTuple):
    """Which jobs a list has.

    Attributes:
        prefix: Their ids start with it.
        contains: Their ids contain it, whatever the case of ASCII letters.
        states: They are in one of these; empty is any.
        order: Their order.
        with_activity: Whether the items have their activity.
    """

    prefix: str = ""
    contains: str = ""
    states: tuple[JobState, ...] = ()
    order: JobOrder = JobOrder.OLDEST
    with_activity: bool = False


class TrialList(NamedTuple):
    """Which trials a list has.

    Attributes:
        job_id: The job, whose trials are listed by number; None: of several jobs, by the time of their start.
        prefix: The ids of these jobs start with it.
        statuses: Empty is any.
        end_reasons: Empty is any.
        batch_size: None is any.
        newest_first: Whether the order is reversed.
        labels: Pairs of key and value that a trial must have.
    """

    job_id: str | None = None
    prefix: str = ""
    statuses: tuple[TrialStatus, ...] = ()
    end_reasons: tuple[EndReason, ...] = ()
    batch_size: int | None = None
    newest_first: bool = False
    labels: tuple[tuple[str, str], ...] = ()


class EventList(NamedTuple):
    """Which events a list has.

    Attributes:
        job_id: The job; None: any.
        prefix: The ids of the jobs start with it.
        kinds: Empty is any.
    """

    job_id: str | None = None
    prefix: str = ""
    kinds: tuple[str, ...] = ()


class ListedTrial(NamedTuple):
    """A trial of a list, and its place."""

    place: Place
    trial: Trial


class ListedEvent(NamedTuple):
    """An event of a list, and its place."""

    place: Place
    event: RecordedEvent


class DeliveryLogs(NamedTuple):
    """Moments of the natural logarithm of what deliveries took, of those that took more than nothing, by quantity."""

    cost: Moments = Moments()
    energy: Moments = Moments()
    time: Moments = Moments()
    money: Moments = Moments()


class TrialGroup(NamedTuple):
    """Trials of one job that count, of one batch size and origin.

    Attributes:
        batch_size: The batch size.
        origin: Their origin.
        own: Whether they ran since the job was registered; False if that is unknown of imported ones.
        delivered: Whether they reached the target, and count as deliveries.
        doubtful: Whether they reached it too cheaply to count.
        running: Whether they are running; then the group has one trial, and only its number and usage are known.
        first_trial: The least of their numbers.
        num_trials: Their number.
        num_undecided: Those of them that ended without a decision.
        num_interrupted: Those of the undecided ones that were interrupted; the others failed.
        usage: What they took together.
        money: What that cost.
        num_without_cost: Those of them whose cost was not measured, because it is that of the energy alone.
        num_without_energy: Those of them without measured energy; 0 J is measured.
        epochs: Their epochs together.
        least_epochs: Of one of them.
        most_epochs: Of one of them.
        newest_end: When the newest one ended.
        logs: Of their logarithms, if they delivered.
    """

    batch_size: int
    origin: TrialOrigin
    own: bool = True
    delivered: bool = False
    doubtful: bool = False
    running: bool = False
    first_trial: int = 0
    num_trials: int = 0
    num_undecided: int = 0
    num_interrupted: int = 0
    usage: Usage = Usage()
    money: float = 0.0
    num_without_cost: int = 0
    num_without_energy: int = 0
    epochs: int = 0
    least_epochs: int = 0
    most_epochs: int = 0
    newest_end: datetime | None = None
    logs: DeliveryLogs = DeliveryLogs()


class Day(NamedTuple):
    """The own trials of a job that count and ended on one day, in UTC.

    Attributes:
        start: When the day began.
        num_trials: Their number.
        num_deliveries: Those of them that are deliveries.
        usage: What they took together.
    """

    start: datetime
    num_trials: int
    num_deliveries: int
    usage: Usage


class Prices(NamedTuple):
    """Money for a joule, and for a second of one GPU."""

    joule: float = 0.0
    gpu_second: float = 0.0


class JobVersion(NamedTuple):
    """What tells whether the statistics of a job are out of date.

    Attributes:
        key: The job's key.
        num_search_events: Its events so far: the statistics change with them.
        reset_after: Trials up to this number do not count.
        excluded: The numbers of its excluded trials, ascending.
        policy: Its policy, with its parameters if a person has changed it.
        default_batch_size: Its default batch size.
        paused: Whether a person has paused the search.
        pinned: The batch size that every launch gets, if there is one.
        best_known: The batch size with the least expected cost; None while unknown.
        num_gpus: Of a trial.
        needs_attention: See `Activity`.
        available: Its available batch sizes, ascending; empty while one is pinned or best known.
        failing: Those whose last three or more trials failed; likewise.
    """

    key: int
    num_search_events: int
    reset_after: int
    excluded: tuple[int, ...]
    policy: str
    default_batch_size: int
    paused: bool
    pinned: int | None
    best_known: int | None
    num_gpus: int
    needs_attention: bool
    available: tuple[int, ...] = ()
    failing: tuple[int, ...] = ()

    @property
    def is_held(self) -> bool:
        """Whether a person has paused the search or pinned a batch size."""
        return self.paused or self.pinned is not None


class Content(NamedTuple):
    """How much a database holds."""

    jobs: int
    running_trials: int


class StoredProfile(NamedTuple):
    """The power profile of a trial: its samples, by ascending limit."""

    trial_number: int
    batch_size: int
    samples: Sequence[PowerSample]


class PolicyState(NamedTuple):
    """The policy of a job, and the notes of its search."""

    policy: str
    notes: str


class Bucket(NamedTuple):
    """Trials of one batch size in a range of numbers; see `TrialBucket` in the protos.

    Attributes:
        place: The range's, from 0.
    """

    place: int
    batch_size: int
    num_trials: int
    num_deliveries: int
    num_undecided: int
    least_cost: float
    median_cost: float
    most_cost: float
    newest_trial: int
    last_end_time: datetime
    mean_epochs: float
    end_reason: EndReason | None
    reason: str
    excluded: bool


class Spent(NamedTuple):
    """Deliveries, and the cost of all trials, in a range of numbers.

    Attributes:
        place: The range's, from 0.
        num_deliveries: Deliveries.
        cost: The cost of all trials.
        num_compared: Those of the deliveries that a claim of savings compares.
        compared_cost: The cost of the trials that it compares.
    """

    place: int
    num_deliveries: int
    cost: float
    num_compared: int
    compared_cost: float


class Migrated(NamedTuple):
    """What a migration has done.

    Attributes:
        before: The version of the schema when it began; 0: the database was new.
        now: The version since.
        by_another: Whether another process has migrated it meanwhile.
    """

    before: int
    now: int
    by_another: bool = False
