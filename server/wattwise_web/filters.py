"""The filters of jobs, trials and events in the address of a page or a file."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from wattwise import v1
from wattwise.presentation.states import END_REASONS
from wattwise.rules import MAX_ID_LENGTH, MAX_INT32, label_of

PAGE_SIZE = 50
STATE_WORDS = {
    "": "all",
    "attention": "needs attention",
    "running": "running",
    "idle": "idle",
    "new": "new",
    "held": "held",
}
ORDER_WORDS = {"attention": "attention first", "activity": "last activity", "newest": "newest", "id": "name"}
_ORDERS = {
    "attention": v1.JOB_ORDER_ATTENTION,
    "activity": v1.JOB_ORDER_LAST_ACTIVITY,
    "newest": v1.JOB_ORDER_NEWEST,
    "id": v1.JOB_ORDER_ID,
}
_RUNNING = "running"
RESULT_WORDS = {"": "all", _RUNNING: _RUNNING, **{name: name.replace("-", " ") for name in END_REASONS}}
"""The words for each result in an address: "running" and the end reasons, as options of commands name them."""


class JobFilter(NamedTuple):
    """The filter and the order of a list of jobs, from the address of a page."""

    text: str
    """A part of their ids; empty for all."""
    state: str
    order: str

    @classmethod
    def of(cls, wanted: Mapping[str, str]) -> JobFilter:
        """Returns the filter of an address; invalid values are ignored."""
        state, order = wanted.get("state", ""), wanted.get("order", "")
        return cls(
            wanted.get("q", "")[:MAX_ID_LENGTH],
            state if state in STATE_WORDS else "",
            order if order in _ORDERS else "attention",
        )

    @property
    def parameters(self) -> dict[str, str]:
        """The parameters of an address; empty ones and the usual order are left out."""
        every = {"q": self.text, "state": self.state, "order": self.order if self.order != "attention" else ""}
        return {name: text for name, text in every.items() if text}

    def request(self, page_token: str) -> v1.ListJobsRequest:
        """Returns the request that lists the jobs."""
        return v1.ListJobsRequest(
            page_size=PAGE_SIZE,
            page_token=page_token,
            contains=self.text,
            states=[v1.JobState.Value(f"JOB_STATE_{self.state.upper()}")] if self.state else [],
            order=_ORDERS[self.order],
            with_summaries=True,
            with_total_size=True,
        )


class EventFilter(NamedTuple):
    """The filter of a list of events: a job or all jobs, and a kind or all kinds."""

    job_id: str
    kind: str

    @classmethod
    def of(cls, wanted: Mapping[str, str]) -> EventFilter:
        """Returns the filter of an address; an unknown kind is ignored."""
        kind = wanted.get("kind", "")
        known = kind in v1.EventKind.keys() and v1.EventKind.Value(kind)  # noqa: SIM118
        return cls(wanted.get("job", ""), kind if known else "")

    @property
    def parameters(self) -> dict[str, str]:
        """The parameters of an address; empty ones are left out."""
        return {name: text for name, text in (("job", self.job_id), ("kind", self.kind)) if text}

    def request(self, page_token: str) -> v1.ListEventsRequest:
        """Returns the request that lists the events."""
        return v1.ListEventsRequest(
            job_id=self.job_id,
            page_size=PAGE_SIZE,
            page_token=page_token,
            kinds=[v1.EventKind.Value(self.kind)] if self.kind else [],
        )


@dataclass(frozen=True)
class TrialFilter:
    """The filter of a list of trials of a job, from the address of a page or a file.

    Attributes:
        result: how they ended, by the names of `RESULT_WORDS`; empty for all.
        batch_size: 0 for all.
        start: the largest trial number; 0 for all.
        label: a pair of key and value that they have; None for all.
    """

    result: str = ""
    batch_size: int = 0
    start: int = 0
    label: tuple[str, str] | None = None

    @classmethod
    def of(cls, job: v1.Job, wanted: Mapping[str, str]) -> TrialFilter:
        """Returns the filter of an address; invalid values are ignored."""
        result, size = wanted.get("result", ""), whole(wanted.get("batch", ""))
        return cls(
            result if result in RESULT_WORDS else "",
            size if size in job.spec.batch_sizes else 0,
            whole(wanted.get("from", "")),
            label_of(wanted.get("label", "")),
        )

    @property
    def parameters(self) -> dict[str, str]:
        """The parameters of an address; empty ones are left out."""
        every = {
            "result": self.result,
            "batch": str(self.batch_size or ""),
            "from": str(self.start or ""),
            "label": "=".join(self.label or ()),
        }
        return {name: text for name, text in every.items() if text}

    def request(self, job_id: str, *, page_size: int) -> v1.ListTrialsRequest:
        """Returns the request that lists the trials, the newest one first."""
        return v1.ListTrialsRequest(
            job_id=job_id,
            page_size=page_size,
            newest_first=True,
            from_trial_number=self.start,
            with_total_size=True,
            **self.arguments,
        )

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments of a call that lists the trials; in ascending order the caller ends the list at `start`."""
        return {
            "end_reasons": [END_REASONS[self.result]] if self.result in END_REASONS else [],
            "statuses": [v1.TRIAL_STATUS_RUNNING] if self.result == _RUNNING else [],
            "batch_size": self.batch_size,
            "labels": dict([self.label] if self.label else ()),
        }


def ignored(wanted: Mapping[str, str], used: Collection[str]) -> Sequence[str]:
    """Returns the parameters of an address that are not used, because their names or values are unknown."""
    return [name for name, text in wanted.items() if text and name not in used]


def whole(text: str) -> int:
    """Returns a positive 32-bit number; 0 for anything else."""
    if text.isascii() and text.isdecimal() and len(text) <= 10 and int(text) <= MAX_INT32:
        return int(text)
    return 0
