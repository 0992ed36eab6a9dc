"""Checks of what a server answers."""

from __future__ import annotations

import pytest
from wattwise import v1
from wattwise.errors import InvalidAnswerError
from wattwise.rpc import answers

SPEC = v1.JobSpec(job_id="job", batch_sizes=[16, 32], default_batch_size=16, max_epochs=10)


def trial(number: int = 1, last_epoch: int = 0) -> v1.Trial:
    """A trial of the job."""
    return v1.Trial(
        id=v1.TrialId(job_id="job", launch_id="l", trial_number=number),
        batch_size=16,
        newest=v1.Measurement(epoch=last_epoch),
    )


def test_epochs_above_the_limit() -> None:
    """A server decides a trial at or above the last epoch, so that an answer may have more epochs than the job."""
    answers.check_dispatched(trial(last_epoch=12), SPEC)


@pytest.mark.parametrize("number", [0, -1, -(2**31)])
def test_trial_without_a_number(number: int) -> None:
    """Trials are counted from 1."""
    with pytest.raises(InvalidAnswerError):
        answers.check_dispatched(trial(number), SPEC)


@pytest.mark.parametrize("change", [{"batch_sizes": []}, {"batch_sizes": [16]}])
def test_lists_that_differ(change: dict[str, list[object]]) -> None:
    """Another list is refused, and a job without batch sizes."""
    sent, found = v1.JobSpec(), v1.JobSpec()
    sent.CopyFrom(SPEC)
    found.CopyFrom(sent)
    for name, values in change.items():
        found.ClearField(name)  # type: ignore[arg-type]
        getattr(found, name).extend(values)
    with pytest.raises(InvalidAnswerError):
        answers.check_registered(v1.Job(spec=found), sent)


@pytest.mark.parametrize(
    "page",
    [
        v1.ListJobsResponse(next_page_token="a", total_size=3),  # noqa: S106 - of a page
        v1.ListTrialsResponse(next_page_token="a"),  # noqa: S106 - of a page
        v1.ListEventsResponse(next_page_token="a"),  # noqa: S106 - of a page
        v1.ListJobsResponse(jobs=[v1.JobListing()], next_page_token="before"),  # noqa: S106 - of a page
        v1.ListJobsResponse(jobs=[v1.JobListing()], next_page_token=10_000 * "x"),
    ],
)
def test_pages_that_may_not_end(page: v1.ListJobsResponse) -> None:
    """An empty page that has a successor, a page for the second time and a huge token are refused."""
    with pytest.raises(InvalidAnswerError):
        answers.Pages("before").check(page)


def test_new_page_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """A list has a largest number of pages."""
    monkeypatch.setattr(answers, "MOST_PAGES", 5)
    pages = answers.Pages()
    for number in range(1, 5):
        pages.check(v1.ListJobsResponse(jobs=[v1.JobListing()], next_page_token=str(number)))
    with pytest.raises(InvalidAnswerError):
        pages.check(v1.ListJobsResponse(jobs=[v1.JobListing()], next_page_token="5"))  # noqa: S106 - of a page
    pages.check(v1.ListJobsResponse())
