"""How a trial starts: a table from where the trial comes from, and what the server says, to what is done."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import NamedTuple

from wattwise import v1
from wattwise.training.resume import Sums
from wattwise.training.state import Link
from wattwise.training.trial import TrialInfo


class Source(Enum):
    """Where the trial comes from."""

    SERVER = "server"
    """The server chooses the trial."""
    CHECKPOINT = "checkpoint"
    """The trial of a checkpoint, which had a number when it was saved."""
    FALLBACK_CHECKPOINT = "fallback checkpoint"
    """The trial of a checkpoint that had no number when it was saved: not dispatched by the server, or lost."""
    DRIVER = "driver"
    """The trial that `wattwise run` has assigned to this process."""


class Reply(Enum):
    """What the server says about the trial."""

    TRIAL = "trial"
    """The server has the trial, or gives a new one."""
    OVER = "over"
    """The server has the trial, and has decided it since."""
    NO_ANSWER = "no answer"
    """The server does not answer, is out of order, or has no batch size left."""
    NOT_FOUND = "not found"
    """The server does not have the trial."""
    DELETED = "deleted"
    """The trial was deleted with its job."""
    NOT_ASKED = "not asked"
    """The server is not asked: it never had the trial under a number."""


class Start(Enum):
    """What is done to start a trial."""

    NEW = "new"
    """Train the server's trial."""
    FALLBACK = "fallback"
    """Train with the fallback batch size; the server gets the trial once it is over."""
    RESUMED = "resumed"
    """Continue the trial of the checkpoint with what the server knows of it."""
    OVER = "over"
    """Train nothing: the trial of the checkpoint is over."""
    RESUMED_AWAY = "resumed away"
    """Continue the trial of the checkpoint; the server is asked to resume it once it is back."""
    CONTINUED = "continued"
    """Continue the trial of the checkpoint; the server gets it once it is over."""
    LOST = "lost"
    """As `CONTINUED`, with a trial that the server has lost."""
    JOINED = "joined"
    """Train the trial of the driver with what the server knows of it."""
    JOINED_AWAY = "joined away"
    """Train the trial of the driver as its variables describe it."""
    JOINED_LOST = "joined lost"
    """As `JOINED_AWAY`, with a trial that the server has lost; the server gets the trial once it is over."""

    @property
    def needs_fallback(self) -> bool:
        """Whether this is done with a fallback only; without one, the launch fails."""
        return self in (Start.FALLBACK, Start.RESUMED_AWAY, Start.LOST)

    @property
    def counts_alone(self) -> bool:
        """Whether this process counts time and energy without those that the server may have of earlier processes."""
        return self in (Start.RESUMED_AWAY, Start.CONTINUED, Start.LOST, Start.JOINED_AWAY)

    @property
    def link(self) -> Link:
        """The link to the server at the start."""
        if self in (Start.FALLBACK, Start.CONTINUED, Start.LOST, Start.JOINED_LOST):
            return Link.DETACHED
        return Link.AWAY if self in (Start.RESUMED_AWAY, Start.JOINED_AWAY) else Link.TRACKED


STARTS: Mapping[tuple[Source, Reply], Start | None] = {
    (Source.SERVER, Reply.TRIAL): Start.NEW,
    (Source.SERVER, Reply.NO_ANSWER): Start.FALLBACK,
    (Source.SERVER, Reply.DELETED): None,
    (Source.CHECKPOINT, Reply.TRIAL): Start.RESUMED,
    (Source.CHECKPOINT, Reply.OVER): Start.OVER,
    (Source.CHECKPOINT, Reply.NO_ANSWER): Start.RESUMED_AWAY,
    (Source.CHECKPOINT, Reply.NOT_FOUND): Start.LOST,
    (Source.CHECKPOINT, Reply.DELETED): None,
    (Source.FALLBACK_CHECKPOINT, Reply.NOT_ASKED): Start.CONTINUED,
    (Source.DRIVER, Reply.TRIAL): Start.JOINED,
    (Source.DRIVER, Reply.NO_ANSWER): Start.JOINED_AWAY,
    (Source.DRIVER, Reply.NOT_FOUND): Start.JOINED_LOST,
    (Source.DRIVER, Reply.DELETED): None,
}
"""Every pair that can occur. None: the launch fails; it also fails if `needs_fallback` and there is no fallback."""


class StartedTrial(NamedTuple):
    """A trial as rank 0 passes it to all ranks.

    Attributes:
        how: how the trial starts.
        info: the trial, from rank 0's point of view.
        sent: the job as the server was, or is to be, sent it.
        sums: where training starts.
        decision: the decision of a trial that is over; None for every other start.
    """

    how: Start
    info: TrialInfo
    sent: v1.JobSpec
    sums: Sums = Sums()
    decision: v1.Decision | None = None
