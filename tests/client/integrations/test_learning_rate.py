"""Learning rates for other batch sizes."""

from __future__ import annotations

import math
from typing import Any

import pytest
from wattwise import InvalidArgumentError, scaled_learning_rate


def test_sgd_scales_linearly() -> None:
    """Twice the batch, twice the rate; an eighth of it, an eighth."""
    assert scaled_learning_rate(0.1, batch_size=512, default_batch_size=256, optimizer="sgd") == 0.2
    assert scaled_learning_rate(0.8, batch_size=32, default_batch_size=256, optimizer="SGD") == 0.1


@pytest.mark.parametrize("name", ["adam", "AdamW", "adadelta", "Adagrad", "adamax", "nadam", "radam", "RMSprop"])
def test_adaptive_optimizers_scale_with_the_square_root(name: str) -> None:
    """Four times the batch, twice the rate."""
    assert scaled_learning_rate(0.001, batch_size=1024, default_batch_size=256, optimizer=name) == 0.002


def test_rule_can_be_named() -> None:
    """`rule` scales for any other optimizer."""
    assert scaled_learning_rate(1.0, batch_size=8, default_batch_size=4, rule="linear") == 2.0
    assert scaled_learning_rate(1.0, batch_size=8, default_batch_size=4, rule="sqrt") == math.sqrt(2)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"optimizer": "lion"}, "'lion', only for adadelta, adagrad, adam, adamax, adamw, nadam, radam, rmsprop, sgd;"),
        ({"rule": "cubic"}, "rule='cubic'"),
        ({}, "either optimizer"),
        ({"optimizer": "sgd", "rule": "sqrt"}, "either optimizer"),
        ({"optimizer": "sgd", "batch_size": 0}, "batch_size=0"),
        ({"optimizer": "sgd", "default_batch_size": -4}, "default_batch_size=-4"),
        ({"optimizer": "sgd", "learning_rate": "0.1"}, "learning_rate='0.1'"),
        ({"optimizer": "sgd", "learning_rate": math.nan}, "learning_rate=nan"),
    ],
)
def test_arguments_that_cannot_be_scaled(arguments: dict[str, Any], named: str) -> None:
    """An unknown optimizer or rule, or a number that is not positive, is named in the error."""
    usual: dict[str, Any] = {"learning_rate": 0.1, "batch_size": 8, "default_batch_size": 4}
    with pytest.raises(InvalidArgumentError) as caught:
        scaled_learning_rate(**(usual | arguments))
    assert named in str(caught.value)
