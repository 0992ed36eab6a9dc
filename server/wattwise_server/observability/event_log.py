"""Logs every event once it is durable."""

from __future__ import annotations

import logging
from contextvars import copy_context
from functools import partial

from wattwise_server.events import Event
from wattwise_server.observability.call import current_call
from wattwise_server.observability.logs import log_event
from wattwise_server.observability.observers import Notification

log = logging.getLogger(__name__)


class EventLog:
    """An Observer that writes log lines."""

    def __init__(self) -> None:
        self.wants_reports = log.isEnabledFor(logging.DEBUG)

    def opened(self, jobs: int, running_trials: int) -> None:
        """Logs what the database holds."""
        log_event(log, logging.INFO, "database opened", jobs=jobs, running_trials=running_trials)

    def counted(self, jobs: int, running_trials: int) -> None:
        """Logs nothing."""

    def prepare(self, event: Event) -> Notification:
        """Logs the event once it is durable, with the fields of the running call."""
        if not event.log_name or not log.isEnabledFor(event.log_level):
            return _ignore
        if call := current_call.get():
            call.remember()
        return partial(copy_context().run, _log, event)

    def committed(self, rows: int, seconds: float) -> None:
        """Logs nothing."""

    def commit_failed(self) -> None:
        """Logs nothing: the writer logs it with the cause."""

    def conflicted(self) -> None:
        """Logs nothing: the calls are run again."""


def _ignore() -> None:
    pass


def _log(event: Event) -> None:
    log_event(log, event.log_level, event.log_name, **event.log_fields)
