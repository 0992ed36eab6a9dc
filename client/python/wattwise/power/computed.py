"""What the cheapest power limit would have taken: computed from a profile, never measured."""

from __future__ import annotations

from dataclasses import dataclass

from wattwise import v1


@dataclass(frozen=True)
class Computed:
    """Time and energy of a trial's training steps at two power limits, as its profile lets expect: steps × per step.

    Everything here is computed; what the trial really took is in its measurements.

    Attributes:
        steps: training steps so far, those of the profile included; evaluations are not in here.
        power_limit_watts: the cheapest limit.
        time_seconds: what all the steps would have taken at it.
        energy_joules: likewise, over all GPUs.
        highest_power_limit_watts: the highest limit, at which the trial trains.
        highest_time_seconds: what all the steps would have taken at it.
        highest_energy_joules: likewise.
    """

    steps: int
    power_limit_watts: float
    time_seconds: float
    energy_joules: float
    highest_power_limit_watts: float
    highest_time_seconds: float
    highest_energy_joules: float

    @classmethod
    def of(cls, steps: int, best: v1.PowerSample, highest: v1.PowerSample) -> Computed:
        """Multiplies what a step took.

        Args:
            steps: how many there were.
            best: the sample of the cheapest limit.
            highest: the sample of the highest.
        """
        return cls(
            steps,
            best.power_limit_watts,
            steps * best.time_seconds / best.steps,
            steps * best.energy_joules / best.steps,
            highest.power_limit_watts,
            steps * highest.time_seconds / highest.steps,
            steps * highest.energy_joules / highest.steps,
        )

    def __str__(self) -> str:
        return (
            f"computed from the profile, not measured: {self.steps} steps would have taken {self.time_seconds:.4g} s "
            f"and {self.energy_joules:.4g} J at {self.power_limit_watts:g} W, against {self.highest_time_seconds:.4g} "
            f"s and {self.highest_energy_joules:.4g} J at {self.highest_power_limit_watts:g} W"
        )
