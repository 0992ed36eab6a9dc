"""What the owner of a file remembers of one job."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from wattwise_server.domain import Job, Trial
from wattwise_server.store.writer import Submission

_REMEMBERED_ENDS = 4
"""Trials of a job kept in memory once they have ended: their trainers are about to say that they are gone."""


@dataclass(slots=True)
class Entry:
    """One job in memory."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    loaded: bool = False
    key: int = 0
    job: Job | None = None
    running: dict[int, Trial] = field(default_factory=dict)
    requests: dict[str, int] = field(default_factory=dict)
    ended: dict[int, Trial] = field(default_factory=dict)
    submitted: Submission | None = None
    users: int = 0
    lost: bool = False

    @property
    def idle(self) -> bool:
        """Whether nothing would be lost by forgetting it."""
        durable = self.submitted is None or self.submitted.done
        return not self.users and not self.running and durable

    def see(self, trial: Trial) -> bool:
        """Takes a trial as it is now; says whether it has started to run."""
        number = trial.number
        if trial.running:
            starts = number not in self.running
            self.running[number] = trial
            if starts:
                self.ended.pop(number, None)
                if trial.request_id:
                    self.requests[trial.request_id] = number
            return starts
        self.running.pop(number, None)
        if trial.request_id:
            self.requests.pop(trial.request_id, None)
        self.ended[number] = trial
        if len(self.ended) > _REMEMBERED_ENDS:
            del self.ended[next(iter(self.ended))]
        return False

    async def durable(self) -> None:
        """Returns once all that was submitted for the job is durable."""
        if self.submitted is not None:
            await self.submitted.durable()
