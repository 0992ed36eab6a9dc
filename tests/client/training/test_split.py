"""The arithmetic of batch sizes, devices and accumulated steps."""

from __future__ import annotations

import logging
import math

import pytest
from wattwise.errors import InvalidArgumentError, TrainerSetupError
from wattwise.training.split import GlobalBatch, Split

SPLIT = Split("size", "steps")


def batch(size: int, *others: int) -> GlobalBatch:
    """A trial's batch size, and others of its job."""
    return GlobalBatch(size, (*others, size))


def test_size_and_steps_make_up_the_batch_size() -> None:
    """The size follows from devices and steps, the steps from devices and size."""
    assert SPLIT.size_for(batch(128), devices=2, steps=4) == 16
    assert SPLIT.steps_for(batch(128), devices=2, size=16) == 4
    SPLIT.check(batch(128), devices=2, steps=4, size=16)


def test_size_that_does_not_divide() -> None:
    """A size that does not divide the batch size is refused; the error names the sizes that do."""
    with pytest.raises(TrainerSetupError, match=r"24 .* 2 devices with size=8: .* 1, 2, 3, 4, 6, 12, .* 12 divided"):
        SPLIT.steps_for(batch(24), devices=2, size=8)


def test_steps_that_do_not_divide() -> None:
    """Accumulated steps that do not divide the batch size are refused; the error names the sizes that do."""
    with pytest.raises(TrainerSetupError, match=r"1 device with steps=5: .* 1, 2, 4, 8,"):
        SPLIT.size_for(batch(8), devices=1, steps=5)


@pytest.mark.parametrize("what", ["devices", "ranks"])
def test_number_that_does_not_divide(what: str) -> None:
    """A number of devices or ranks that does not divide the batch size is refused; the error says what would work.

    It names the job's batch sizes that the number divides, the nearest ones, and the numbers that divide this one.
    """
    with pytest.raises(TrainerSetupError, match=rf"size 8 .* over 3 {what}; .* 6, 9 can; .*: 6, 9\..*\(1, 2, 4, 8\)"):
        batch(8, 6, 7, 9).share(3, what)
    assert issubclass(TrainerSetupError, InvalidArgumentError)


def test_devices_that_do_not_divide_are_the_same_error_for_every_split() -> None:
    """Computing a size and checking one refuse devices that do not divide the batch size, with the same advice."""
    with pytest.raises(TrainerSetupError, match=r"none can; .*: 3\."):
        SPLIT.size_for(batch(2), devices=3, steps=1)
    with pytest.raises(TrainerSetupError, match=r"sizes, 9 can; .*: 6, 9\."):
        SPLIT.check(batch(8, 9), devices=3, steps=1, size=3)


def test_trainer_with_another_batch_size() -> None:
    """A trainer with another batch size is refused; the error shows the arithmetic."""
    with pytest.raises(TrainerSetupError, match=r"is 8, .* 16 \(size=4 on 2 devices with steps=2\)"):
        SPLIT.check(batch(8), devices=2, steps=2, size=4)


@pytest.mark.parametrize(("devices", "steps"), [(0, 1), (1, 0), (1, -2)])
def test_less_than_one(devices: int, steps: int) -> None:
    """Less than one device or step is refused."""
    with pytest.raises(TrainerSetupError, match=r"(devices|steps) is (0|-2)"):
        SPLIT.size_for(batch(8), devices=devices, steps=steps)


@pytest.mark.parametrize(
    ("devices", "max_per_device", "split"),
    [
        (1, 1000, (96, 1)),  # fits without accumulation
        (1, 96, (96, 1)),
        (1, 95, (48, 2)),
        (1, 40, (32, 3)),  # the limit itself does not divide
        (2, 40, (24, 2)),
        (4, 5, (4, 6)),
        (96, 7, (1, 1)),
        (1, 1, (1, 96)),
    ],
)
def test_largest_size_that_divides(devices: int, max_per_device: int, split: tuple[int, int]) -> None:
    """The size per device is the largest up to the limit that divides the device's share, whatever divides it."""
    assert batch(96).accumulated(devices, max_per_device) == split


def test_share_that_only_one_divides() -> None:
    """A share that is a prime above the limit is trained one example at a time."""
    assert batch(97).accumulated(1, 64) == (1, 97)


@pytest.mark.parametrize("bad", [0, -1, 2.0, True, "8", None])
def test_limit_that_is_no_size(bad: object) -> None:
    """A limit or a number of devices that is not a positive integer is refused by its name."""
    with pytest.raises(TrainerSetupError, match="max_per_device="):
        batch(8).accumulated(1, bad)  # type: ignore[arg-type]
    with pytest.raises(TrainerSetupError, match="ranks="):
        batch(8).accumulated(bad, 1, "ranks")  # type: ignore[arg-type]


def test_accumulation_over_devices_that_do_not_divide() -> None:
    """Devices that do not divide the batch size are refused as without a limit."""
    with pytest.raises(TrainerSetupError, match=r"size 8 .* over 3 devices"):
        batch(8).accumulated(3, 2)


@pytest.mark.parametrize(
    ("examples", "steps"), [(6400, 100), (64, 1), (1, 1), (6431, 100), (6432, 101), (96, 2), (1e5, 1563)]
)
def test_steps_that_pass_a_number_of_examples(examples: float, steps: int) -> None:
    """The nearest whole number of steps, halves rounded up, and at least one."""
    found = batch(64).steps(examples)
    assert (found, type(found)) == (steps, int)


@pytest.mark.parametrize("bad", [0, -64, math.nan, math.inf, "6400", None, True])
def test_examples_that_are_no_number(bad: object) -> None:
    """A number of examples that is not finite and above 0 is refused."""
    with pytest.raises(InvalidArgumentError, match="examples="):
        batch(64).steps(bad)  # type: ignore[arg-type]


def test_steps_of_other_examples(caplog: pytest.LogCaptureFixture) -> None:
    """One warning says that rounding changes the examples of an epoch; a small difference is none."""
    with caplog.at_level(logging.WARNING, "wattwise"):
        for examples in (6431, 6400, 100, 100):
            batch(64).steps(examples)
    assert [record.args for record in caplog.records] == [(100, 1.5625, 64, 2)]
