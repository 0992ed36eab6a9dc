"""How a batch size is split: global batch size = size per device x devices x accumulated steps."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import NamedTuple

from wattwise.errors import InvalidArgumentError, TrainerSetupError, log
from wattwise.rules import finite

ROUNDING = 0.05
"""The share of the examples by which rounding to whole steps may change an epoch without a message."""


class GlobalBatch(NamedTuple):
    """A trial's batch size over all devices.

    Attributes:
        size: the batch size.
        of_job: the batch sizes of its job.
    """

    size: int
    of_job: tuple[int, ...]

    def share(self, number: int, what: str = "devices") -> int:
        """Returns the share of each of several devices or ranks.

        Args:
            number: the number of devices or ranks.
            what: their name in the error.

        Raises:
            TrainerSetupError: if the number does not divide the batch size; names the batch sizes that it divides.
        """
        if self.size % number == 0:
            return self.size // number
        fitting = ", ".join(str(each) for each in self.of_job if each % number == 0)
        below = self.size // number * number
        near = ", ".join(str(each) for each in (below, below + number) if each)
        raise TrainerSetupError(
            f"batch size {self.size} cannot be split evenly over {number} {what}; of the job's batch sizes, "
            f"{fitting or 'none'} can; the nearest that can: {near}. Register a job whose batch_sizes are all "
            f"multiples of {number}, or train on a number of {what} that divides {self.size} ({_divisors(self.size)})"
        )

    def accumulated(self, devices: int, max_per_device: int, what: str = "devices") -> tuple[int, int]:
        """Returns the largest size per device up to a limit, and the accumulated steps that complete the batch size.

        Args:
            devices: the number of devices or ranks.
            max_per_device: the largest number of examples that a device can train in one step.
            what: the name of the devices in the error.

        Returns:
            The size per device and step, and the number of steps between two updates of the weights.

        Raises:
            TrainerSetupError: if a number is not a positive integer, or the batch size cannot be split over the
                devices.
        """
        for name, value in ((what, devices), ("max_per_device", max_per_device)):
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise TrainerSetupError(f"{name}={value!r} is invalid: pass an integer of 1 or more")
        share = self.share(devices, what)
        size = next(size for size in range(min(share, max_per_device), 0, -1) if share % size == 0)
        return size, share // size

    def steps(self, examples: float) -> int:
        """Returns the number of steps that pass about `examples` examples: the nearest whole number, at least 1.

        Raises:
            InvalidArgumentError: if `examples` is not a finite number above 0.
        """
        if not finite(examples) > 0:
            raise InvalidArgumentError(
                f"examples={examples!r} is invalid: pass the number of training examples between two reports, above 0"
            )
        steps = max(1, math.floor(examples / self.size + 0.5))
        if abs(steps * self.size - examples) > ROUNDING * examples:
            _warn_of_rounding(self.size, examples, steps)
        return steps


@dataclass(frozen=True)
class Split:
    """Splits a batch size, with the option names of one trainer.

    Attributes:
        size: the option for the number of examples per device and step.
        steps: the option for the number of steps between two updates of the weights.
    """

    size: str
    steps: str

    def size_for(self, batch: GlobalBatch, *, devices: int, steps: int) -> int:
        """Returns the size per device for a number of accumulated steps.

        Raises:
            TrainerSetupError: if the batch size cannot be split evenly; names the numbers that work.
        """
        return self._divided(batch, devices, steps, self.steps)

    def steps_for(self, batch: GlobalBatch, *, devices: int, size: int) -> int:
        """Returns the accumulated steps for a size per device.

        Raises:
            TrainerSetupError: if the batch size cannot be split evenly; names the numbers that work.
        """
        return self._divided(batch, devices, size, self.size)

    def check(self, batch: GlobalBatch, *, devices: int, steps: int, size: int) -> None:
        """Checks that a trainer's settings add up to the trial's batch size.

        Raises:
            TrainerSetupError: if they do not; says what to set.
        """
        if size * devices * steps != batch.size:
            raise TrainerSetupError(
                f"the trial's batch size is {batch.size}, but the trainer's is {size * devices * steps} "
                f"({self.size}={size} on {_devices(devices)} with {self.steps}={steps}): "
                f"{self._advice(batch.share(devices))}"
            )

    def _divided(self, batch: GlobalBatch, devices: int, divisor: int, name: str) -> int:
        for value, what in ((devices, "devices"), (divisor, name)):
            if value < 1:
                raise TrainerSetupError(f"{what} is {value}: it must be 1 or more")
        share = batch.share(devices)
        if share % divisor:
            raise TrainerSetupError(
                f"the trial's batch size {batch.size} cannot be split over {_devices(devices)} with {name}={divisor}: "
                f"{self._advice(share)}"
            )
        return share // divisor

    def _advice(self, share: int) -> str:
        return f"set {self.size} to one of {_divisors(share)}, and {self.steps} to {share} divided by it"


@functools.lru_cache(maxsize=100)
def _warn_of_rounding(size: int, examples: float, steps: int) -> None:
    """Warns once of steps that pass another number of examples than other batch sizes would."""
    log.warning(
        "%g examples are %g batches of %d, and count as %d: other batch sizes train other examples in an epoch; choose "
        "a number that all batch sizes divide, or a larger one",
        *(examples, examples / size, size, steps),
    )


def _devices(number: int) -> str:
    return "1 device" if number == 1 else f"{number} devices"


def _divisors(number: int) -> str:
    return ", ".join(str(divisor) for divisor in range(1, number + 1) if number % divisor == 0)
