"""Subscriptions to changes of jobs and trials. A slow subscriber sees the newest state, not every state."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

Topic = tuple[str, int | None]
"""A job's id, and a trial's number or None for the job itself."""


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


class Subscriptions:
    """All subscriptions of one process."""

    def __init__(self) -> None:
        self._by_topic: dict[Topic, set[Subscription]] = {}

    @contextmanager
    def subscribe(self, topic: Topic) -> Iterator[Subscription]:
        """A subscription for as long as the block lasts."""
        subscription = Subscription()
        self._by_topic.setdefault(topic, set()).add(subscription)
        try:
            yield subscription
        finally:
            others = self._by_topic[topic]
            others.discard(subscription)
            if not others:
                del self._by_topic[topic]

    def job_ids(self) -> set[str]:
        """The jobs of all topics."""
        return {job_id for job_id, _ in self._by_topic}

    def publish_all(self, job_id: str) -> None:
        """Wakes all subscribers to a job and to its trials."""
        for topic in [topic for topic in self._by_topic if topic[0] == job_id]:
            self.publish(topic)

    def publish(self, topic: Topic) -> None:
        """Wakes the topic's subscribers."""
        for subscription in self._by_topic.get(topic, ()):
            subscription.notify()
