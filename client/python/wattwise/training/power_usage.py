"""What a trial's results say about power limits: the limit, and in observer mode the usage at the cheapest one."""

from __future__ import annotations

from wattwise import v1
from wattwise.training.resume import Sums


class PowerUsage:
    """Completes the results of one trial.

    In observer mode a training step counts what it takes at the cheapest power limit instead of the highest, by the
    profile. All the rest counts as measured: evaluations, loading of data, the steps before the profile was known, and
    the profile itself. So the computed sums never shrink, and are set from the first result on.

    Args:
        known: the sums of the trial when this launch got it; those of a resumed one may be computed.
        sums: the measured sums where this launch starts.

    Attributes:
        limit_watts: the limit that the GPUs have now; None while it is unknown.
    """

    def __init__(self, known: v1.Measurement, sums: Sums) -> None:
        self.limit_watts: float | None = None
        self._measured = sums.time_seconds, sums.energy_joules
        self._floor: v1.ComputedUsage | None = None
        self._computed: v1.ComputedUsage | None = None
        self._samples: tuple[v1.PowerSample, v1.PowerSample] | None = None
        self._steps = 0
        if known.HasField("computed"):
            # Results after these need computed sums, also if this launch is not in observer mode.
            used = self._floor = known.computed
            self._computed = v1.ComputedUsage(
                time_seconds=sums.time_seconds + used.time_seconds - known.time_seconds,
                energy_joules=sums.energy_joules + used.energy_joules - known.energy_joules,
                power_setting=used.power_setting,
            )

    def observe(self, limit_watts: float) -> None:
        """Computes from now on; `limit_watts` is the limit that the sums are for until the profile is known."""
        if self._computed is None:
            seconds, joules = self._measured
            self._computed = v1.ComputedUsage(
                time_seconds=seconds,
                energy_joules=joules,
                power_setting=v1.PowerSetting(limit_watts_per_gpu=limit_watts),
            )

    def know(self, cheapest: v1.PowerSample, highest: v1.PowerSample) -> None:
        """Computes the steps from now on with the samples of the cheapest and of the highest limit."""
        self._samples = cheapest, highest

    def forget(self) -> None:
        """Counts the steps as measured from now on: the GPUs are no longer at their highest limit."""
        self._samples = None
        self.limit_watts = None

    def end_step(self) -> None:
        """Counts a training step."""
        if self._samples is not None:
            self._steps += 1

    def complete(self, measured: v1.Measurement) -> None:
        """Adds the limit and the computed sums to a measurement, which is the next one of the trial."""
        if self.limit_watts is not None:
            measured.power_setting.limit_watts_per_gpu = self.limit_watts
        if self._computed is not None:
            self._add(measured.time_seconds - self._measured[0], measured.energy_joules - self._measured[1])
            computed = measured.computed
            computed.CopyFrom(self._computed)
            if self._floor is not None:
                # The epochs after a checkpoint are trained again, and may take less than the first time.
                computed.time_seconds = max(computed.time_seconds, self._floor.time_seconds)
                computed.energy_joules = max(computed.energy_joules, self._floor.energy_joules)
            if not computed.energy_joules:
                computed.ClearField("energy_joules")
        self._measured = measured.time_seconds, measured.energy_joules

    def _add(self, seconds: float, joules: float) -> None:
        """Adds what was measured since the last result, with its steps at the cheapest limit."""
        computed, steps = self._computed, self._steps
        self._steps = 0
        if computed is None:
            return
        if self._samples is not None and steps:
            cheapest, highest = self._samples
            computed.power_setting.CopyFrom(cheapest.power_setting)
            seconds = _instead(seconds, steps * _time(highest), steps * _time(cheapest))
            joules = _instead(joules, steps * _energy(highest), steps * _energy(cheapest))
        computed.time_seconds += seconds
        computed.energy_joules += joules


def _instead(measured: float, at_highest: float, at_cheapest: float) -> float:
    """Returns what was measured, with the steps at the cheapest limit; steps may be faster than the profile's."""
    return max(measured - at_highest, 0.0) + at_cheapest


def _time(sample: v1.PowerSample) -> float:
    return sample.time_seconds / sample.steps


def _energy(sample: v1.PowerSample) -> float:
    return sample.energy_joules / sample.steps
