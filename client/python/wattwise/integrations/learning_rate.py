"""Scales a learning rate from the batch size that it was tuned for to another one.

Linear, for SGD: k times the batch, k times the rate (Goyal et al., "Accurate, Large Minibatch SGD: Training ImageNet in
1 Hour", 2017, arXiv 1706.02677). They warm large rates up over the first epochs, which is left to the trainer.

Square root: k times the batch, √k times the rate, which keeps the variance of SGD's updates (Krizhevsky, "One weird
trick for parallelizing convolutional neural networks", 2014, arXiv 1404.5997; Hoffer, Hubara and Soudry, "Train longer,
generalize better", 2017, arXiv 1705.08741), and is the rule for adaptive optimizers, shown for Adam and RMSprop
(Malladi, Lyu, Panigrahi and Arora, "On the SDEs and Scaling Rules for Adaptive Gradient Algorithms", 2022, arXiv
2205.10287). Other optimizers that divide by a running magnitude of the gradient are assumed to follow it.
"""

from __future__ import annotations

import math
from typing import Literal, TypeAlias

from wattwise.errors import InvalidArgumentError
from wattwise.spec import to_number

ScalingRule: TypeAlias = Literal["linear", "sqrt"]

_ADAPTIVE = ("adadelta", "adagrad", "adam", "adamax", "adamw", "nadam", "radam", "rmsprop")
_RULES: dict[str, ScalingRule] = {"sgd": "linear", **dict.fromkeys(_ADAPTIVE, "sqrt")}

OPTIMIZERS = tuple(_RULES)
"""The optimizers with a known rule."""


def scaled_learning_rate(
    learning_rate: float,
    *,
    batch_size: int,
    default_batch_size: int,
    optimizer: str | None = None,
    rule: ScalingRule | None = None,
) -> float:
    """Scales a learning rate to a batch size.

        rate = scaled_learning_rate(0.1, batch_size=bso.get_batch_size(), default_batch_size=256, optimizer="sgd")

    Args:
        learning_rate: the rate for `default_batch_size`.
        batch_size: the global batch size to train with.
        default_batch_size: the global batch size that `learning_rate` was tuned for.
        optimizer: its name, in any case: "sgd" scales linearly; "adam", "adamw", "adadelta", "adagrad", "adamax",
            "nadam", "radam" and "rmsprop" with the square root. Not together with `rule`.
        rule: "linear" or "sqrt", for any other optimizer or to override its rule.

    Raises:
        InvalidArgumentError: if the optimizer or the rule is unknown, both or neither are given, or a number is not
            finite and positive.
    """
    _check_positive(learning_rate=learning_rate, batch_size=batch_size, default_batch_size=default_batch_size)
    factor = batch_size / default_batch_size
    return learning_rate * (factor if _rule(optimizer, rule) == "linear" else math.sqrt(factor))


def _rule(optimizer: str | None, rule: ScalingRule | None) -> ScalingRule:
    if (optimizer is None) == (rule is None):
        raise InvalidArgumentError('pass either optimizer, such as "sgd" or "adamw", or rule, "linear" or "sqrt"')
    if rule is not None:
        if rule not in ("linear", "sqrt"):
            raise InvalidArgumentError(f'rule={rule!r} is unknown; use "linear" or "sqrt"')
        return rule
    known = _RULES.get(str(optimizer).lower())
    if known is None:
        names = ", ".join(sorted(_RULES))
        advice = 'pass rule="linear" or rule="sqrt" for another'
        raise InvalidArgumentError(f"no rule is known for optimizer {optimizer!r}, only for {names}; {advice}")
    return known


def _check_positive(**values: float) -> None:
    for name, value in values.items():
        if not 0 < to_number(value) < math.inf:
            raise InvalidArgumentError(f"{name}={value!r} cannot scale a learning rate; pass a finite number above 0")
