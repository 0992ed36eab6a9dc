"""Between the wire and the domain, as far as power limits are concerned."""

from __future__ import annotations

from wattwise import v1

from wattwise_server.domain import Job, PowerSample, TrialKey
from wattwise_server.policy.power import cost_per_step
from wattwise_server.usecases.power_limits import KnownLimit


def asking(request: v1.GetPowerLimitRequest) -> TrialKey:
    """The trial that asks; number 0 for nobody."""
    return TrialKey(request.job_id, request.batch_size, request.trial_number)


def samples(request: v1.ReportPowerProfileRequest) -> list[PowerSample]:
    """A profile as it was sent."""
    return [PowerSample(s.power_limit_watts, s.time_seconds, s.energy_joules, s.steps) for s in request.samples]


def known(limit: KnownLimit) -> v1.GetPowerLimitResponse:
    """What a trainer is told."""
    return v1.GetPowerLimitResponse(
        power_limit_watts=limit.power_limit_watts, profiled_by_another=limit.profiled_by_another
    )


def power_limits(job: Job) -> list[v1.PowerLimit]:
    """The cheapest limit of every batch size that has one."""
    return [
        v1.PowerLimit(
            batch_size=state.batch_size,
            power_limit_watts=state.cheapest.power_limit_watts,
            cost_per_step=cost_per_step(job.spec, state.cheapest),
            time_seconds_per_step=state.cheapest.time_seconds / state.cheapest.steps,
            energy_joules_per_step=state.cheapest.energy_joules / state.cheapest.steps,
        )
        for state in job.power_limits
        if state.cheapest is not None
    ]
