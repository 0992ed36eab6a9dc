"""A profile under way: sets one limit after another and measures the steps at each."""

from __future__ import annotations

from wattwise import v1
from wattwise.errors import MonitorError, log
from wattwise.monitor.power_limits import PowerLimits
from wattwise.power.stretch import Measured, Stretch
from wattwise.power.walk import Walk

_SHORT_SECONDS = 0.5
"""NVIDIA's energy counters move ten to fifty times a second: much shorter and the steps between two of their moves
decide the comparison."""


class Profile:
    """Walks the limits of a trial's GPUs while it trains; the GPUs are at the first one when it has been made.

    Args:
        walk: the limits.
        stretch: measures the steps.
        limits: sets them.

    Raises:
        MonitorError: if the limit cannot be set.
    """

    def __init__(self, walk: Walk, stretch: Stretch, limits: PowerLimits) -> None:
        self.walk = walk
        self._stretch = stretch
        self._limits = limits
        self._warned = False
        self._set()

    def begin_step(self) -> None:
        """A step begins.

        Raises:
            MonitorError: if the monitor cannot be read.
        """
        self._stretch.begin_step()

    def end_step(self) -> bool:
        """A step has ended; says whether the walk is over.

        Raises:
            MonitorError: if the monitor cannot be read, measured nothing, or the next limit cannot be set.
        """
        measured, limit = self._stretch.end_step(), self.walk.limit
        if measured is None or limit is None:
            return limit is None
        self._check(measured)
        time, energy, steps = measured
        sample = v1.PowerSample(power_limit_watts=limit, time_seconds=time, energy_joules=energy, steps=steps)
        self.walk.take(sample)
        log.info("power limit %g W: %.4g s and %.4g J a step", limit, time / steps, energy / steps)
        return not self._set()

    def interrupt(self) -> None:
        """An epoch has ended: what follows, up to the next step, is not measured.

        Raises:
            MonitorError: if the monitor cannot be read.
        """
        self._stretch.interrupt()

    def _set(self) -> bool:
        limit = self.walk.limit
        if limit is not None:
            self._limits.set(limit)
        return limit is not None

    def _check(self, measured: Measured) -> None:
        if not measured.time_seconds > 0 or not measured.energy_joules >= 0:
            raise MonitorError(
                f"the monitor measured {measured.time_seconds:g} s and {measured.energy_joules:g} J over "
                f"{measured.steps} steps, which cannot be"
            )
        if measured.time_seconds < _SHORT_SECONDS and not self._warned:
            self._warned = True
            log.info(
                "%d steps took only %.3g s, too short for the energy counters of most GPUs: raise "
                "profile_measure_iters until it is a second or more",
                *(measured.steps, measured.time_seconds),
            )
