"""How the batch size of a trial is shared out: global size = size per device x devices x accumulated steps."""

from __future__ import annotations

from dataclasses import dataclass

from wattwise.errors import TrainerSetupError


@dataclass(frozen=True)
class Split:
    """The arithmetic, in the words of one trainer.

    Attributes:
        size: what the trainer calls the examples that one device takes in at once.
        steps: what it calls the number of such steps between two updates of the weights.
    """

    size: str
    steps: str

    def size_for(self, batch_size: int, *, devices: int, steps: int) -> int:
        """The size per device.

        Args:
            batch_size: the trial's, which is the global one.
            devices: how many train together.
            steps: accumulated steps, chosen by the user.

        Raises:
            TrainerSetupError: if it does not come out even; says what would.
        """
        return self._divided(batch_size, devices, steps, self.steps)

    def steps_for(self, batch_size: int, *, devices: int, size: int) -> int:
        """The accumulated steps.

        Args:
            batch_size: the trial's, which is the global one.
            devices: how many train together.
            size: the size per device, chosen by the user.

        Raises:
            TrainerSetupError: if they do not come out even; says what would.
        """
        return self._divided(batch_size, devices, size, self.size)

    def check(self, batch_size: int, *, devices: int, steps: int, size: int) -> None:
        """Makes sure that a trainer trains with the trial's batch size.

        Args:
            batch_size: the trial's, which is the global one.
            devices: how many train together.
            steps: the trainer's accumulated steps.
            size: the trainer's size per device.

        Raises:
            TrainerSetupError: if it does not; says what to set.
        """
        if size * devices * steps != batch_size:
            raise TrainerSetupError(
                f"the trial's batch size is {batch_size}, but the trainer's is {size * devices * steps} "
                f"({self.size}={size} on {_devices(devices)} with {self.steps}={steps}): "
                f"{self._advice(batch_size, devices)}"
            )

    def _divided(self, batch_size: int, devices: int, given: int, name: str) -> int:
        for value, what in ((devices, "devices"), (given, name)):
            if value < 1:
                raise TrainerSetupError(f"{what} is {value}: it must be 1 or more")
        if batch_size % (devices * given):
            raise TrainerSetupError(
                f"the trial's batch size {batch_size} cannot be split over {_devices(devices)} with {name}={given}: "
                f"{self._advice(batch_size, devices)}"
            )
        return batch_size // (devices * given)

    def _advice(self, batch_size: int, devices: int) -> str:
        if batch_size % devices:
            return (
                f"train on a number of devices that divides it ({_listed(batch_size)}), "
                f"or register a job anew whose batch sizes are multiples of {devices}"
            )
        share = batch_size // devices
        return f"set {self.size} to one of {_listed(share)}, and {self.steps} to {share} divided by it"


def _devices(number: int) -> str:
    return "1 device" if number == 1 else f"{number} devices"


def _listed(number: int) -> str:
    return ", ".join(str(divisor) for divisor in range(1, number + 1) if number % divisor == 0)
