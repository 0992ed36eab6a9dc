"""The arithmetic of batch sizes, devices and accumulated steps."""

from __future__ import annotations

import pytest
from wattwise import TrainerSetupError
from wattwise.trainers.split import Split

SPLIT = Split("size", "steps")


def test_size_and_steps_make_up_the_batch_size() -> None:
    """Of size, devices and steps the missing one follows from the batch size."""
    assert SPLIT.size_for(128, devices=2, steps=4) == 16
    assert SPLIT.steps_for(128, devices=2, size=16) == 4
    SPLIT.check(128, devices=2, steps=4, size=16)


def test_size_that_does_not_divide() -> None:
    """A size that does not divide the batch size is refused, and those that do are named."""
    with pytest.raises(TrainerSetupError) as refused:
        SPLIT.steps_for(24, devices=2, size=8)
    assert str(refused.value) == (
        "the trial's batch size 24 cannot be split over 2 devices with size=8: "
        "set size to one of 1, 2, 3, 4, 6, 12, and steps to 12 divided by it"
    )


def test_steps_that_do_not_divide() -> None:
    """Likewise accumulated steps."""
    with pytest.raises(TrainerSetupError, match=r"over 1 device with steps=5: set size to one of 1, 2, 4, 8, and"):
        SPLIT.size_for(8, devices=1, steps=5)


def test_devices_that_do_not_divide() -> None:
    """A batch size that so many devices can never share says how many could."""
    with pytest.raises(TrainerSetupError, match=r"that divides it \(1, 2, 4, 8\).* multiples of 3"):
        SPLIT.size_for(8, devices=3, steps=1)


def test_trainer_with_another_batch_size() -> None:
    """A trainer that trains with another batch size is refused, with the arithmetic."""
    with pytest.raises(TrainerSetupError, match=r"is 8, but the trainer's is 16 \(size=4 on 2 devices with steps=2\)"):
        SPLIT.check(8, devices=2, steps=2, size=4)


@pytest.mark.parametrize(("devices", "steps"), [(0, 1), (1, 0), (1, -2)])
def test_less_than_one(devices: int, steps: int) -> None:
    """Less than one device or step is refused."""
    with pytest.raises(TrainerSetupError, match=r"is (0|-2): it must be 1 or more"):
        SPLIT.size_for(8, devices=devices, steps=steps)
