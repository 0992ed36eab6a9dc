"""How the batch size of a trial is shared out: global size = size per device x devices x accumulated steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from wattwise.errors import TrainerSetupError


class GlobalBatch(NamedTuple):
    """The batch size of a trial, over all devices, and those that its job chooses from."""

    size: int
    of_job: tuple[int, ...]

    def shared(self, number: int, what: str = "devices") -> int:
        """The part of each of several devices or ranks.

        Args:
            number: how many there are.
            what: what they are called.

        Raises:
            TrainerSetupError: if they do not divide it; says which batch sizes they do divide.
        """
        if self.size % number == 0:
            return self.size // number
        fitting = ", ".join(str(each) for each in self.of_job if each % number == 0)
        below = self.size // number * number
        near = " and ".join(str(each) for each in (below, below + number) if each)
        raise TrainerSetupError(
            f"batch size {self.size} cannot be split evenly over {number} {what}; of the job's batch sizes "
            f"{fitting or 'none'} can, and near this one {near}: register a job whose batch_sizes are all multiples of "
            f"{number}, or train on a number of {what} that divides it ({_listed(self.size)})"
        )


@dataclass(frozen=True)
class Split:
    """The arithmetic, in the words of one trainer.

    Attributes:
        size: what the trainer calls the examples that one device takes in at once.
        steps: what it calls the number of such steps between two updates of the weights.
    """

    size: str
    steps: str

    def size_for(self, batch: GlobalBatch, *, devices: int, steps: int) -> int:
        """The size per device.

        Args:
            batch: the trial's.
            devices: how many train together.
            steps: accumulated steps, chosen by the user.

        Raises:
            TrainerSetupError: if it does not come out even; says what would.
        """
        return self._divided(batch, devices, steps, self.steps)

    def steps_for(self, batch: GlobalBatch, *, devices: int, size: int) -> int:
        """The accumulated steps.

        Args:
            batch: the trial's.
            devices: how many train together.
            size: the size per device, chosen by the user.

        Raises:
            TrainerSetupError: if they do not come out even; says what would.
        """
        return self._divided(batch, devices, size, self.size)

    def check(self, batch: GlobalBatch, *, devices: int, steps: int, size: int) -> None:
        """Makes sure that a trainer trains with the trial's batch size.

        Args:
            batch: the trial's.
            devices: how many train together.
            steps: the trainer's accumulated steps.
            size: the trainer's size per device.

        Raises:
            TrainerSetupError: if it does not; says what to set.
        """
        if size * devices * steps != batch.size:
            raise TrainerSetupError(
                f"the trial's batch size is {batch.size}, but the trainer's is {size * devices * steps} "
                f"({self.size}={size} on {_devices(devices)} with {self.steps}={steps}): "
                f"{self._advice(batch.shared(devices))}"
            )

    def _divided(self, batch: GlobalBatch, devices: int, given: int, name: str) -> int:
        for value, what in ((devices, "devices"), (given, name)):
            if value < 1:
                raise TrainerSetupError(f"{what} is {value}: it must be 1 or more")
        share = batch.shared(devices)
        if share % given:
            raise TrainerSetupError(
                f"the trial's batch size {batch.size} cannot be split over {_devices(devices)} with {name}={given}: "
                f"{self._advice(share)}"
            )
        return share // given

    def _advice(self, share: int) -> str:
        return f"set {self.size} to one of {_listed(share)}, and {self.steps} to {share} divided by it"


def _devices(number: int) -> str:
    return "1 device" if number == 1 else f"{number} devices"


def _listed(number: int) -> str:
    return ", ".join(str(divisor) for divisor in range(1, number + 1) if number % divisor == 0)
