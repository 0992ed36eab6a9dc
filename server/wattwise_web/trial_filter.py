"""Which trials of a job a page or a file has, as its address says it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from wattwise import v1

_LONGEST_KEY, _LONGEST_VALUE = 63, 200
"""Of labels."""
RESULT_WORDS = {
    "": "all",
    "running": "running",
    "reached": "target reached",
    "bound": "cost bound",
    "epochs": "max epochs",
    "stopped": "stopped early",
    "error": "error",
    "memory": "out of memory",
    "lost": "lost",
    "preempted": "preempted",
}
_RESULTS = {
    "reached": v1.END_REASON_TARGET_REACHED,
    "bound": v1.END_REASON_COST_BOUND,
    "epochs": v1.END_REASON_MAX_EPOCHS,
    "stopped": v1.END_REASON_STOPPED_EARLY,
    "error": v1.END_REASON_ERROR,
    "memory": v1.END_REASON_OUT_OF_MEMORY,
    "lost": v1.END_REASON_LOST,
    "preempted": v1.END_REASON_PREEMPTED,
}


@dataclass(frozen=True)
class TrialFilter:
    """Which trials of a job are listed, as the address of a page or a file says it.

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
        """The filter of an address; what it may not have is ignored."""
        result, size = wanted.get("result", ""), whole(wanted.get("batch", ""))
        key, equals, value = wanted.get("label", "").partition("=")
        key, value = key.strip(), value.strip()
        right = (
            equals and 0 < len(key) <= _LONGEST_KEY and len(value) <= _LONGEST_VALUE and f"{key}{value}".isprintable()
        )
        return cls(
            result if result in RESULT_WORDS else "",
            size if size in job.spec.batch_sizes else 0,
            whole(wanted.get("from", "")),
            (key, value) if right else None,
        )

    @property
    def parameters(self) -> dict[str, str]:
        """As an address has them; empty ones are left out."""
        every = {
            "result": self.result,
            "batch": str(self.batch_size or ""),
            "from": str(self.start or ""),
            "label": "=".join(self.label or ()),
        }
        return {name: text for name, text in every.items() if text}

    def request(self, job_id: str, *, page_size: int, newest_first: bool = True) -> v1.ListTrialsRequest:
        """The request that lists them; in ascending order its reader has to end at `start`."""
        return v1.ListTrialsRequest(
            job_id=job_id,
            page_size=page_size,
            newest_first=newest_first,
            from_trial_number=self.start if newest_first else 0,
            end_reason=_RESULTS.get(self.result, v1.END_REASON_UNSPECIFIED),
            status=v1.TRIAL_STATUS_DISPATCHED if self.result == "running" else v1.TRIAL_STATUS_UNSPECIFIED,
            batch_size=self.batch_size,
            labels=dict([self.label] if self.label else ()),
            with_total_size=True,
        )


def whole(text: str) -> int:
    """A positive 32-bit number; 0 for anything else."""
    if text.isascii() and text.isdecimal() and len(text) <= 10 and int(text) < 2**31:
        return int(text)
    return 0
