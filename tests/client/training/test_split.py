"""The arithmetic of batch sizes, devices and accumulated steps."""

from __future__ import annotations

import pytest
from wattwise import InvalidArgumentError, TrainerSetupError
from wattwise.training.split import GlobalBatch, Split

SPLIT = Split("size", "steps")


def batch(size: int, *others: int) -> GlobalBatch:
    """The batch size of a trial, and others that its job has."""
    return GlobalBatch(size, (*others, size))


def test_size_and_steps_make_up_the_batch_size() -> None:
    """Of size, devices and steps the missing one follows from the batch size."""
    assert SPLIT.size_for(batch(128), devices=2, steps=4) == 16
    assert SPLIT.steps_for(batch(128), devices=2, size=16) == 4
    SPLIT.check(batch(128), devices=2, steps=4, size=16)


def test_size_that_does_not_divide() -> None:
    """A size that does not divide the batch size is refused, and those that do are named."""
    with pytest.raises(TrainerSetupError) as refused:
        SPLIT.steps_for(batch(24), devices=2, size=8)
    assert str(refused.value) == (
        "the trial's batch size 24 cannot be split over 2 devices with size=8: "
        "set size to one of 1, 2, 3, 4, 6, 12, and steps to 12 divided by it"
    )


def test_steps_that_do_not_divide() -> None:
    """Likewise accumulated steps."""
    with pytest.raises(TrainerSetupError, match=r"over 1 device with steps=5: set size to one of 1, 2, 4, 8, and"):
        SPLIT.size_for(batch(8), devices=1, steps=5)


@pytest.mark.parametrize("what", ["devices", "ranks"])
def test_number_that_does_not_divide(what: str) -> None:
    """A batch size that so many can never share is refused, and the batch sizes that they can, and how many could."""
    with pytest.raises(TrainerSetupError) as refused:
        batch(8, 6, 7, 9).shared(3, what)
    assert str(refused.value) == (
        f"batch size 8 cannot be split evenly over 3 {what}; of the job's batch sizes 6, 9 can, and near this one "
        f"6 and 9: register a job whose batch_sizes are all multiples of 3, or train on a number of {what} that "
        "divides it (1, 2, 4, 8)"
    )
    assert isinstance(refused.value, InvalidArgumentError)


def test_trainers_refuse_it_in_the_same_words() -> None:
    """Whether a trainer's sizes are asked for or checked, devices that do not divide the batch size are that error."""
    with pytest.raises(TrainerSetupError, match="of the job's batch sizes none can, and near this one 3:"):
        SPLIT.size_for(batch(2), devices=3, steps=1)
    with pytest.raises(TrainerSetupError, match="of the job's batch sizes 9 can, and near this one 6 and 9:"):
        SPLIT.check(batch(8, 9), devices=3, steps=1, size=3)


def test_trainer_with_another_batch_size() -> None:
    """A trainer that trains with another batch size is refused, with the arithmetic."""
    with pytest.raises(TrainerSetupError, match=r"is 8, but the trainer's is 16 \(size=4 on 2 devices with steps=2\)"):
        SPLIT.check(batch(8), devices=2, steps=2, size=4)


@pytest.mark.parametrize(("devices", "steps"), [(0, 1), (1, 0), (1, -2)])
def test_less_than_one(devices: int, steps: int) -> None:
    """Less than one device or step is refused."""
    with pytest.raises(TrainerSetupError, match=r"is (0|-2): it must be 1 or more"):
        SPLIT.size_for(batch(8), devices=devices, steps=steps)
