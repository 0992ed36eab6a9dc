"""Subscriptions to changes of jobs and trials. A slow subscriber sees the newest state, not every state."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

Topic = tuple[str, int | None]
"""A job's id, and a trial's number, None for the job itself, or `REPORTS`."""

_MOST_NAMED = 2_000
"""Changed jobs that a subscription names; of more, it says that any job may have changed."""

REPORTS = 0
"""Replaces a trial's number: the epochs that any trial of the job reports."""


class Subscription:
    """Wakes its owner after a change."""

    def __init__(self) -> None:
        self._changed = asyncio.Event()

    def notify(self) -> None:
        """Wakes the owner, now or at its next `wait`."""
        self._changed.set()

    async def wait(self) -> None:
        """Returns once something changed since the last return."""
        await self._changed.wait()
        self._changed.clear()


class JobsSubscription(Subscription):
    """Wakes its owner after a change of a job whose id starts with a prefix, and knows which jobs have changed.

    Attributes:
        prefix: The prefix.
    """

    def __init__(self, prefix: str) -> None:
        super().__init__()
        self.prefix = prefix
        self._job_ids: set[str] = set()
        self._all = False

    def note(self, job_id: str) -> None:
        """Notes that a job has changed."""
        if job_id.startswith(self.prefix):
            self._job_ids.add(job_id)
            if len(self._job_ids) > _MOST_NAMED:
                self._all = True
            if self._all:
                self._job_ids.clear()
            self.notify()

    def note_all(self) -> None:
        """Notes that any job may have changed."""
        self._all = True
        self._job_ids.clear()
        self.notify()

    def take(self) -> tuple[set[str], bool]:
        """Returns the jobs that have changed since the last call, or that any may have changed."""
        taken = self._job_ids, self._all
        self._job_ids, self._all = set(), False
        return taken


class Subscriptions:
    """All subscriptions of one process."""

    def __init__(self) -> None:
        self._by_topic: dict[Topic, set[Subscription]] = {}
        self._of_jobs: set[JobsSubscription] = set()

    @contextmanager
    def subscribe(self, topic: Topic) -> Iterator[Subscription]:
        """Subscribes to a topic for as long as the block lasts."""
        subscription = Subscription()
        self._by_topic.setdefault(topic, set()).add(subscription)
        try:
            yield subscription
        finally:
            others = self._by_topic[topic]
            others.discard(subscription)
            if not others:
                del self._by_topic[topic]

    @contextmanager
    def subscribe_jobs(self, prefix: str) -> Iterator[JobsSubscription]:
        """Subscribes to several jobs for as long as the block lasts."""
        subscription = JobsSubscription(prefix)
        self._of_jobs.add(subscription)
        try:
            yield subscription
        finally:
            self._of_jobs.discard(subscription)

    def publish_unknown(self) -> None:
        """Wakes all who have subscribed to several jobs, any of which may have changed."""
        for subscription in self._of_jobs:
            subscription.note_all()

    def job_ids(self) -> set[str]:
        """Returns the jobs of all topics."""
        return {job_id for job_id, _ in self._by_topic}

    def publish_all(self, job_id: str) -> None:
        """Wakes all subscribers to a job and to its trials."""
        for topic in [topic for topic in self._by_topic if topic[0] == job_id]:
            self.publish(topic)
        self._note(job_id)

    def publish(self, topic: Topic) -> None:
        """Wakes the topic's subscribers."""
        for subscription in self._by_topic.get(topic, ()):
            subscription.notify()
        self._note(topic[0])

    def _note(self, job_id: str) -> None:
        for subscription in self._of_jobs:
            subscription.note(job_id)
