"""The state of a running trial: its link to the server, its progress, and the events that change them."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import NamedTuple


class Link(Enum):
    """Whether the server answers and has the trial."""

    TRACKED = "tracked"
    """The server answers and has the trial."""
    AWAY = "away"
    """The server does not answer; measurements are kept until it does."""
    DETACHED = "detached"
    """The server does not have the trial, or cannot continue it. Nothing is sent until the trial ends; then the whole
    trial is delivered."""


class Progress(Enum):
    """How far the trial has come."""

    RUNNING = "running"
    """The training goes on."""
    DECIDED = "decided"
    """The server has ended the trial."""
    ENDED = "ended"
    """This trainer has ended the trial: by a decision of its own, or because its loop or its process ended."""
    SETTLED = "settled"
    """Nothing is left to deliver: the server has all of the trial or has deleted it, or a driver will end it."""


class Event(Enum):
    """What changes the state of a trial."""

    ANSWERED = "answered"
    """The server has answered."""
    STOPPED = "stopped"
    """The server has ended the trial, in an answer or by a message of its own."""
    DELETED = "deleted"
    """The server says that the trial was deleted with its job."""
    UNREACHABLE = "unreachable"
    """The server does not answer, or is out of order."""
    UNKNOWN = "unknown"
    """The server does not have the trial and has not deleted it, as after the loss of its database; or its trainer has
    ended the trial before, so that the server cannot continue it."""
    CLOSED = "closed"
    """This trainer ends the trial: by its own decision, or because its loop or its process ends."""
    DELIVERED = "delivered"
    """Nothing is left to deliver of a trial that is over."""


_LINKS: Mapping[tuple[Link, Event], Link] = {
    (Link.TRACKED, Event.UNREACHABLE): Link.AWAY,
    (Link.TRACKED, Event.UNKNOWN): Link.DETACHED,
    (Link.AWAY, Event.ANSWERED): Link.TRACKED,
    (Link.AWAY, Event.STOPPED): Link.TRACKED,
    (Link.AWAY, Event.DELETED): Link.TRACKED,
    (Link.AWAY, Event.UNKNOWN): Link.DETACHED,
}
_PROGRESS: Mapping[tuple[Progress, Event], Progress] = {
    (Progress.RUNNING, Event.STOPPED): Progress.DECIDED,
    (Progress.RUNNING, Event.DELETED): Progress.SETTLED,
    (Progress.RUNNING, Event.CLOSED): Progress.ENDED,
    (Progress.DECIDED, Event.DELETED): Progress.SETTLED,
    (Progress.DECIDED, Event.DELIVERED): Progress.SETTLED,
    (Progress.ENDED, Event.STOPPED): Progress.DECIDED,
    (Progress.ENDED, Event.DELETED): Progress.SETTLED,
    (Progress.ENDED, Event.DELIVERED): Progress.SETTLED,
}


class TrialState(NamedTuple):
    """The state of a trial.

    Each event moves the link along the first table and the progress along the second; a dot is no change. A settled
    trial changes no more, its link neither.

        link      ANSWERED  STOPPED  DELETED  UNREACHABLE  UNKNOWN   CLOSED  DELIVERED
        tracked   .         .        .        away         detached  .       .
        away      tracked   tracked  tracked  .            detached  .       .
        detached  .         .        .        .            .         .       .

        progress  ANSWERED  STOPPED  DELETED  UNREACHABLE  UNKNOWN   CLOSED  DELIVERED
        running   .         decided  settled  .            .         ended   .
        decided   .         .        settled  .            .         .       settled
        ended     .         decided  settled  .            .         .       settled
        settled   .         .        .        .            .         .       .

    A trial begins as running, with the link that its `Start` has. A trial that starts as `Start.OVER` has no
    session and begins as settled. Only a trial that is settled leaves no file in the spool.
    """

    link: Link = Link.TRACKED
    progress: Progress = Progress.RUNNING

    def after(self, event: Event) -> TrialState:
        """Returns the state after an event."""
        if self.progress is Progress.SETTLED:
            return self
        link = _LINKS.get((self.link, event), self.link)
        return TrialState(link, _PROGRESS.get((self.progress, event), self.progress))
