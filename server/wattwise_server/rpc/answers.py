"""What an answer shows: messages of the use cases' values, copied by name."""

from __future__ import annotations

from collections.abc import Mapping

from google.protobuf.message import Message
from wattwise import v1
from wattwise.drafts import job_fields

from wattwise_server.domain import EnergyQuality, Job, MonitorKinds, Trial
from wattwise_server.rpc.by_name import INSIDE, Copier
from wattwise_server.usecases.job_view import PolicyDetails, TrialView, job_view
from wattwise_server.usecases.statistics import TrialRange

_LIMIT = "limit_watts_per_gpu"

_RENAMED: Mapping[type[Message], Mapping[str, str]] = {
    v1.AcquirePowerLimitResponse: {"power_setting": _LIMIT},
    v1.Arm: {"param_mean": "mean", "param_precision": "precision", "num_observations": "observations"},
    v1.ComputedUsage: {"power_setting": _LIMIT},
    v1.DetectedChange: {"factor": "finite_factor"},
    v1.Factors: {
        "electricity_price_per_kwh": "electricity_price",
        "carbon_intensity_grams_per_kwh": "carbon_intensity",
        "source": "factors_source",
    },
    v1.Job: {
        INSIDE: "job",
        "policy_state": "job",
        "available_batch_sizes": "available_batch_sizes",
        "min_cost": "job.search.min_cost",
        "min_cost_batch_size": "job.search.min_cost_batch_size",
        "best_known_batch_size": "job.search.best_known",
        "best_known_cost": "job.search.best_known_cost",
        "batch_size_in_use": "batch_size_in_use",
        "pinned_batch_size": "job.pinned",
        "reset_after": "reset_after",
        "baseline_every": "baseline_every",
    },
    v1.JobSummary: {
        "num_running_trials": "activity.num_running",
        "last_activity_time": "activity.last_time",
        "needs_attention": "activity.needs_attention",
    },
    v1.Measurement: {"power_setting": _LIMIT},
    v1.Event: {INSIDE: "event"},
    v1.PowerLimit: {INSIDE: "limit", "batch_size": "batch_size", "power_setting": "limit.limit_watts_per_gpu"},
    v1.PowerSample: {"power_setting": _LIMIT},
    v1.ProfiledLimit: {"power_setting": _LIMIT},
    v1.SavingsEstimate: {"spent": "measured_spent"},
    v1.Totals: {INSIDE: "totals", "savings": "savings", "spent_per_delivery": "spent_per_delivery"},
    v1.Trial: {
        INSIDE: "trial",
        "id": "trial.key",
        "newest": "trial.last",
        "warnings": "warnings",
        "reason": "trial.launch.reason",
        "decision_message": "decision_message",
        "pruning_gts": "trial.policy_role",
        "recurrence": "recurrence",
        "labels": "labels",
        "token_id": "trial.launch.token_id",
    },
    v1.TrialBucket: {INSIDE: "bucket", "first_trial": "first_trial", "last_trial": "last_trial"},
}


def _monitor(known: MonitorKinds) -> Mapping[str, object] | None:
    return {"kinds": known.kinds, "quality": _QUALITIES[known.quality]} if known.kinds else None


_QUALITIES = {quality: v1.EnergyQuality.Value(f"ENERGY_QUALITY_{quality.value}") for quality in EnergyQuality}


def _policy_state(known: Job) -> Mapping[str, object]:
    return _of_policy(v1.PolicyState, known.spec.policy, known.search)


def _policy_details(known: PolicyDetails) -> Mapping[str, object]:
    return _of_policy(v1.PolicyDetails, known.policy, known)


def _of_policy(kind: type[Message], policy: str, value: object) -> Mapping[str, object]:
    """Returns the fields of a message with one field for each policy; none if the contract does not know the policy."""
    field = kind.DESCRIPTOR.fields_by_name.get(policy)
    return {} if field is None or field.message_type is None else {policy: _COPIER.fields(field.message_type)(value)}


_COPIER = Copier(
    _RENAMED,
    {
        v1.JobSpec: job_fields,
        v1.Monitor: _monitor,
        v1.PolicyDetails: _policy_details,
        v1.PolicyState: _policy_state,
        v1.PowerSetting: lambda watts: {_LIMIT: watts},
    },
)
message = _COPIER.message
"""Makes a message of a use case's value."""

decision = _COPIER.fields(v1.Decision.DESCRIPTOR)
"""Maps a decision to its fields, for the constructor of the answer that has it."""

_bucket, _point = _COPIER.fields(v1.TrialBucket.DESCRIPTOR), _COPIER.fields(v1.SavingsPoint.DESCRIPTOR)


def job(known: Job) -> v1.Job:
    """Returns a job."""
    return message(v1.Job, job_view(known))


def trial(known: Trial) -> v1.Trial:
    """Returns a trial as its trainer sees it."""
    return message(v1.Trial, TrialView(known))


def trial_range(known: TrialRange) -> v1.ListTrialBucketsResponse:
    """Returns a range of trials, as a page of its own."""
    return v1.ListTrialBucketsResponse(
        buckets=map(_bucket, known.buckets), savings_points=map(_point, known.savings_points)
    )
