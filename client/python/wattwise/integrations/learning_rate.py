"""Scales a learning rate, or a schedule in steps, from the batch size that it was tuned for to another one.

Linear, for SGD: k times the batch, k times the rate (Goyal et al., "Accurate, Large Minibatch SGD: Training ImageNet in
1 Hour", 2017, arXiv 1706.02677). They warm large rates up over the first epochs, which is left to the trainer. LARS is
SGD with a trust ratio per layer (You, Gitman and Ginsburg, "Large Batch Training of Convolutional Networks", 2017,
arXiv 1708.03888), and is scaled linearly by Chen, Kornblith, Norouzi and Hinton ("A Simple Framework for Contrastive
Learning of Visual Representations", 2020, arXiv 2002.05709). LOMO is SGD in less memory (Lv et al., "Full
Parameter Fine-tuning for Large Language Models with Limited Resources", 2023, arXiv 2306.09782).

Square root: k times the batch, √k times the rate, which keeps the variance of SGD's updates (Krizhevsky, "One weird
trick for parallelizing convolutional neural networks", 2014, arXiv 1404.5997; Hoffer, Hubara and Soudry, "Train longer,
generalize better", 2017, arXiv 1705.08741), and is the rule for adaptive optimizers, shown for Adam and RMSprop
(Malladi, Lyu, Panigrahi and Arora, "On the SDEs and Scaling Rules for Adaptive Gradient Algorithms", 2022, arXiv
2205.10287). Other optimizers that divide by a running magnitude of the gradient are assumed to follow it. Also:

- LAMB, whose authors use it: You et al., "Large Batch Optimization for Deep Learning: Training BERT in 76 minutes",
  2020, arXiv 1904.00962.
- Lion, whose update is a sign (Chen et al., "Symbolic Discovery of Optimization Algorithms", 2023, arXiv 2302.06675):
  up to a batch size that depends on the noise, the best rate for such updates grows with the square root (Li et al.,
  "Surge Phenomenon in Optimal Learning Rate and Batch Size Scaling", 2024, arXiv 2405.14578).
- Adafactor (Shazeer and Stern, "Adafactor: Adaptive Learning Rates with Sublinear Memory Cost", 2018, arXiv
  1804.04235), which divides as Adam does, if the trainer sets its rate. With relative steps it has no rate to scale.

No rule is published for Muon (Jordan et al., "Muon: An optimizer for hidden layers in neural networks", 2024).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from enum import Enum
from typing import Literal, TypeAlias

from wattwise.errors import InvalidArgumentError
from wattwise.rules import finite

ScalingRule: TypeAlias = Literal["linear", "sqrt"]

_LINEAR = ("sgd", "sgdw", "asgd", "momentum", "nesterov", "lars", "lomo")
_SQRT = (
    *("adadelta", "adafactor", "adagrad", "adalomo", "adam", "adamax", "adamw", "adan", "ademamix", "ftrl", "lamb"),
    *("lion", "nadam", "nadamw", "radam", "rmsprop", "sparseadam"),
)
_RULES: dict[str, ScalingRule] = {**dict.fromkeys(_LINEAR, "linear"), **dict.fromkeys(_SQRT, "sqrt")}

OPTIMIZERS = tuple(_RULES)
"""The optimizers with a known rule, without the names of their implementations."""

# Implementations, and variants that keep the updates of the optimizer they are named after, as frameworks write them.
_VARIANT = re.compile(
    "^(?:apollo|bnb|fused|galore|grok|lookahead|paged|schedulefree|stable)+"
    "|(?:anyprecision|apex|bnb|fused|hf|layerwise|npu|schedulefree|tf|torch|xla|[0-9]+bit)+$"
)
_KEEP = "it sets its own step sizes: keep the learning rate as it is"
_ADVICE = {
    "muon": 'no rule is published: pass rule="sqrt", as its updates do not grow with the gradient, like those of Adam',
    **dict.fromkeys(("lbfgs", "rprop", "prodigy", "dadaptadam", "dadaptsgd", "dadaptadagrad", "dadaptlion"), _KEEP),
}
_UNKNOWN = (
    'no rule is known: pass rule="sqrt" if its updates do not grow with the gradient, like those of Adam, or '
    'rule="linear" if they do, like those of SGD'
)


def scaled_learning_rate(
    learning_rate: float,
    *,
    batch_size: int,
    default_batch_size: int,
    optimizer: object = None,
    rule: ScalingRule | None = None,
) -> float:
    """Scales a learning rate to a batch size.

        rate = scaled_learning_rate(0.1, batch_size=bso.get_batch_size(), default_batch_size=256, optimizer="sgd")

    Args:
        learning_rate: the rate for `default_batch_size`.
        batch_size: the global batch size to train with.
        default_batch_size: the global batch size that `learning_rate` was tuned for.
        optimizer: its name, as Hugging Face, PyTorch, Keras or timm write it, or its class, or the optimizer itself:
            "sgd", LARS and LOMO scale linearly; Adam and its relatives, Adafactor, LAMB, Lion and RMSprop with the
            square root. Not together with `rule`.
        rule: "linear" or "sqrt", for any other optimizer or to override its rule.

    Raises:
        InvalidArgumentError: if the optimizer or the rule is unknown, both or neither are given, or a number is not
            finite and positive. For an optimizer without a rule, it says which one to choose.
    """
    _check_positive(learning_rate=learning_rate, batch_size=batch_size, default_batch_size=default_batch_size)
    factor = batch_size / default_batch_size
    return learning_rate * (factor if _rule(optimizer, rule) == "linear" else math.sqrt(factor))


def scaled_steps(steps: float, *, batch_size: int, default_batch_size: int) -> int:
    """Scales a number of steps to a batch size, so that they pass the same number of examples.

        warmup = scaled_steps(2000, batch_size=bso.get_batch_size(), default_batch_size=256)

    For schedules that count steps: warm-up, decay, the maximum of iterations. A step is one update of the weights.

    Args:
        steps: the number of steps for `default_batch_size`; 0 stays 0.
        batch_size: the global batch size to train with.
        default_batch_size: the global batch size that `steps` was chosen for.

    Returns:
        The nearest whole number, and at least 1 unless `steps` is 0.

    Raises:
        InvalidArgumentError: if a batch size is not finite and positive, or `steps` not finite and 0 or more.
    """
    _check_positive(batch_size=batch_size, default_batch_size=default_batch_size)
    if not finite(steps) >= 0:
        raise InvalidArgumentError(f"steps={steps!r} cannot be scaled; pass a finite number of 0 or more")
    return max(1, math.floor(steps * default_batch_size / batch_size + 0.5)) if steps else 0


def scaling_rule(optimizer: object) -> ScalingRule:
    """Returns the rule for an optimizer.

    Args:
        optimizer: its name, its class, or the optimizer itself.

    Raises:
        InvalidArgumentError: if there is none; says which one to choose.
    """
    names = list(_names(optimizer))
    if any(group.get("relative_step") for group in getattr(optimizer, "param_groups", ())):
        raise InvalidArgumentError(f"optimizer {names[0]!r} has relative steps: {_KEEP}")
    for name in names:
        short = _VARIANT.sub("", re.sub("[^a-z0-9]", "", name.lower()))
        if short in _RULES:
            return _RULES[short]
        if short in _ADVICE:
            raise InvalidArgumentError(f"optimizer {name!r} cannot be scaled by its name; {_ADVICE[short]}")
    raise InvalidArgumentError(f"optimizer {names[0]!r} cannot be scaled by its name; {_UNKNOWN}")


def _names(optimizer: object) -> Iterator[str]:
    """Yields the name; of an object or a class, the names of its class and of the classes that it derives from."""
    if isinstance(optimizer, Enum):
        optimizer = optimizer.value
    if isinstance(optimizer, str):
        yield optimizer.rsplit(".", 1)[-1]
        return
    if not isinstance(optimizer, type):
        # accelerate and Keras wrap the optimizer in another one.
        wrapped = getattr(optimizer, "optimizer", getattr(optimizer, "inner_optimizer", optimizer))
        optimizer = type(wrapped)
    for kind in optimizer.__mro__:
        yield kind.__name__


def _rule(optimizer: object, rule: ScalingRule | None) -> ScalingRule:
    if (optimizer is None) == (rule is None):
        raise InvalidArgumentError('pass either optimizer, such as "sgd" or "adamw", or rule, "linear" or "sqrt"')
    if rule is None:
        return scaling_rule(optimizer)
    if rule not in ("linear", "sqrt"):
        raise InvalidArgumentError(f'rule={rule!r} is unknown; use "linear" or "sqrt"')
    return rule


def _check_positive(**values: float) -> None:
    for name, value in values.items():
        if not finite(value) > 0:
            raise InvalidArgumentError(f"{name}={value!r} cannot scale anything; pass a finite number above 0")
