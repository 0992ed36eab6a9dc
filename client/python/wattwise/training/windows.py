"""Time and energy of a trial: sums over the measurement windows of its epochs."""

from __future__ import annotations

import contextlib
import math
import time

from wattwise import v1
from wattwise.errors import MonitorError, log
from wattwise.monitor import Monitor, MonitorKinds, monitor_kinds
from wattwise.monitor.plausible import CheckedMonitor
from wattwise.training.resume import Sums, joules_or_none

_SHORTEST_SECONDS = 1e-6
"""The shortest window: the server refuses a trial whose time is 0."""


def training_result(trial: v1.TrialId, sums: Sums, metric: float, monitor: MonitorKinds) -> v1.TrainingResult:
    """Returns the measurement of an epoch as the server takes it, which has NaN for a metric that is not finite."""
    return v1.TrainingResult(
        trial=trial,
        measurement=v1.Measurement(
            epoch=sums.epoch,
            time_seconds=sums.time_seconds,
            energy_joules=joules_or_none(sums.energy_joules),
            metric=metric if math.isfinite(metric) else math.nan,
        ),
        monitor=monitor.to_message(),
    )


class TrainingWindows:
    """Adds up measurement windows.

    A monitor that fails during training, or measures what cannot be true, does not end it: the energy of the window is
    its length by the clock times the trial's mean power so far. In the trial's first window it is the job's maximum
    power, so that an unmeasured trial does not look cheap.

    No other window of the monitor may have the name of these.

    Args:
        monitor: the monitor.
        name: the name of its windows.
        max_power_watts: the maximum power of the job's GPUs.
        weighs_energy: whether the job's costs depend on energy.

    Attributes:
        time_seconds: length of all closed windows.
        energy_joules: energy within them.
        estimated_seconds: the part of that time that the monitor could not measure.
    """

    def __init__(self, monitor: Monitor, name: str, max_power_watts: float, *, weighs_energy: bool = True) -> None:
        self._monitor = CheckedMonitor(monitor, max_power_watts)
        self._name = name
        self._max_power_watts = max_power_watts
        self._kinds = monitor_kinds(monitor)
        # Wattwise's monitors raise MonitorError; any other exception of theirs comes from the training.
        # Third-party monitors may raise anything.
        self._failures = MonitorError if self._monitor.raises_own_errors else Exception
        self._start_time = 0.0
        self._is_open = False
        self._failure: BaseException | None = None
        self._warned = False
        self._warns_of_no_energy = weighs_energy
        self.time_seconds = 0.0
        self.energy_joules = 0.0
        self.estimated_seconds = 0.0

    @property
    def monitor(self) -> MonitorKinds:
        """What the energy comes from, estimates included."""
        return self._kinds.with_failure() if self.estimated_seconds else self._kinds

    def open(self) -> None:
        """Starts the first window.

        Raises:
            MonitorError: if the monitor cannot be read.
        """
        self._start_time = time.monotonic()
        self._monitor.begin_window(self._name)
        self._is_open = True

    def reopen(self) -> None:
        """Starts the next window, even if the monitor fails."""
        try:
            self.open()
        except self._failures as error:
            self._failure = error

    def close(self) -> None:
        """Ends the window and adds it, estimated if the monitor fails."""
        seconds = max(time.monotonic() - self._start_time, _SHORTEST_SECONDS)
        self._is_open = False
        try:
            if self._failure is None:
                self._measure(seconds)
                self._warned = False
        except self._failures as error:
            self._failure = error
        if self._failure is not None:
            self._estimate(seconds, self._failure)
            self._failure = None

    def measure(self) -> None:
        """Adds the open window, if there is one, and starts the next."""
        if self._is_open:
            self.close()
            self.reopen()

    def discard(self) -> None:
        """Ends the window, if one is open, without adding it."""
        if self._is_open:
            self._is_open = False
            with contextlib.suppress(self._failures):
                self._monitor.end_window(self._name)

    def _measure(self, elapsed: float) -> None:
        window = self._monitor.end_window(self._name)
        # A monitor with a coarse clock measures no time in a short window.
        self.time_seconds += window.time or elapsed
        self.energy_joules += window.total_energy
        if self._warns_of_no_energy and not self.energy_joules:
            log.warning(
                "the monitor measured no energy in %.3g s, so the cost of this trial is that of its time alone; check "
                "the monitor, or set eta_knob=0 under a new job_id if energy is not to count",
                self.time_seconds,
            )
        self._warns_of_no_energy = False

    def _estimate(self, seconds: float, failure: BaseException) -> None:
        watts, basis = self._max_power_watts, "the job's maximum power"
        if self.time_seconds > 0:
            watts, basis = self.energy_joules / self.time_seconds, "this trial's mean power so far"
        self.time_seconds += seconds
        self.energy_joules += watts * seconds
        self.estimated_seconds += seconds
        if not self._warned:
            self._warned = True
            log.warning(
                "energy cannot be measured (%s: %s); training continues, and the energy is estimated from %.4g W, %s, "
                "until the monitor works again",
                type(failure).__name__,
                failure,
                watts,
                basis,
            )
