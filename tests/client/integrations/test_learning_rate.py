"""Learning rates and schedules for other batch sizes."""

from __future__ import annotations

import importlib
import math
from enum import Enum
from typing import Any

import pytest
from wattwise import scaled_learning_rate, scaled_steps
from wattwise.errors import InvalidArgumentError
from wattwise.integrations.learning_rate import scaling_rule


def test_sgd_scales_linearly() -> None:
    """Twice the batch, twice the rate; an eighth of it, an eighth."""
    assert scaled_learning_rate(0.1, batch_size=512, default_batch_size=256, optimizer="sgd") == 0.2
    assert scaled_learning_rate(0.8, batch_size=32, default_batch_size=256, optimizer="SGD") == 0.1


@pytest.mark.parametrize("name", ["adam", "AdamW", "adadelta", "Adagrad", "adamax", "nadam", "radam", "RMSprop"])
def test_adaptive_optimizers_scale_with_the_square_root(name: str) -> None:
    """Four times the batch, twice the rate."""
    assert scaled_learning_rate(0.001, batch_size=1024, default_batch_size=256, optimizer=name) == 0.002


@pytest.mark.parametrize(
    ("name", "rule"),
    [
        # Hugging Face.
        *(("adamw_torch", "sqrt"), ("adamw_torch_fused", "sqrt"), ("adamw_torch_npu_fused", "sqrt")),
        *(("adamw_hf", "sqrt"), ("adamw_apex_fused", "sqrt"), ("adamw_anyprecision", "sqrt"), ("adamw_8bit", "sqrt")),
        *(("adamw_bnb_8bit", "sqrt"), ("paged_adamw_32bit", "sqrt"), ("adafactor", "sqrt"), ("rmsprop_bnb", "sqrt")),
        *(("lion_32bit", "sqrt"), ("paged_lion_8bit", "sqrt"), ("galore_adamw_8bit_layerwise", "sqrt")),
        *(
            ("schedule_free_adamw", "sqrt"),
            ("schedule_free_sgd", "linear"),
            ("apollo_adamw", "sqrt"),
            ("lomo", "linear"),
        ),
        *(("paged_ademamix_32bit", "sqrt"), ("stable_adamw", "sqrt"), ("grokadamw", "sqrt")),
        # Keras, timm, bitsandbytes, apex, schedulefree, and a path.
        *(("Ftrl", "sqrt"), ("lamb", "sqrt"), ("lars", "linear"), ("momentum", "linear"), ("adan", "sqrt")),
        *(("fusedlamb", "sqrt"), ("rmsproptf", "sqrt"), ("lookahead_adam", "sqrt"), ("PagedAdamW8bit", "sqrt")),
        *(("FusedSGD", "linear"), ("AdamWScheduleFree", "sqrt"), ("torch.optim.AdamW", "sqrt")),
    ],
)
def test_names_of_frameworks(name: str, rule: str) -> None:
    """The name of an implementation or a variant has the rule of the optimizer that it contains."""
    assert scaling_rule(name) == rule


@pytest.mark.parametrize("name", ["muon", "Muon", "torch.optim.Muon", "novograd", "sgdx", "8bit", ""])
def test_optimizer_without_a_rule(name: str) -> None:
    """An optimizer whose rule is unknown is named, with the rule to choose, in a short message."""
    with pytest.raises(InvalidArgumentError) as caught:
        scaling_rule(name)
    message = str(caught.value)
    assert repr(name.rsplit(".", maxsplit=1)[-1]) in message
    assert 'rule="sqrt"' in message
    assert len(message) < 250


@pytest.mark.parametrize("name", ["LBFGS", "rprop", "prodigy"])
def test_optimizer_that_sets_its_own_steps(name: str) -> None:
    """An optimizer without a rate to scale is refused, and no rule is suggested."""
    with pytest.raises(InvalidArgumentError, match="keep the learning rate") as caught:
        scaling_rule(name)
    assert "rule=" not in str(caught.value)


class SGD:
    """Has the name of an optimizer."""


class OwnSGD(SGD):
    """Derives from an optimizer."""


class Wrapper:
    """Holds an optimizer, as accelerate does."""

    def __init__(self, optimizer: object) -> None:
        self.optimizer = optimizer


class Names(str, Enum):
    """Names of optimizers, as Hugging Face parses them."""

    LION = "lion_8bit"


@pytest.mark.parametrize(
    ("optimizer", "rule"),
    [(SGD, "linear"), (SGD(), "linear"), (OwnSGD, "linear"), (Wrapper(OwnSGD()), "linear"), (Names.LION, "sqrt")],
)
def test_classes_and_objects(optimizer: object, rule: str) -> None:
    """A class, an object, a wrapped object and a member of an enumeration stand for their optimizer."""
    assert scaling_rule(optimizer) == rule


def test_object_of_another_kind() -> None:
    """Anything else is named by its class."""
    with pytest.raises(InvalidArgumentError, match="'int'"):
        scaling_rule(3)


@pytest.mark.torch
def test_optimizers_of_pytorch() -> None:
    """Every optimizer of PyTorch has a rule, or is known to have none."""
    torch = pytest.importorskip("torch", reason="needs PyTorch: make test-torch")
    rules = {}
    for name, kind in vars(torch.optim).items():
        if isinstance(kind, type) and name != "Optimizer":
            try:
                rules[name] = scaling_rule(kind)
            except InvalidArgumentError as error:
                assert ("published" in str(error)) == (name == "Muon"), error  # noqa: PT017 - some have a rule
    assert {"LBFGS", "Rprop", "Muon"}.isdisjoint(rules)
    assert {name for name, rule in rules.items() if rule == "linear"} == {"SGD", "ASGD"}
    assert scaling_rule(torch.optim.AdamW([torch.zeros(1)])) == "sqrt"


@pytest.mark.trainers
def test_optimizers_of_hugging_face() -> None:
    """Every name that `optim` accepts has a rule."""
    module = pytest.importorskip("transformers.training_args", reason="needs transformers: make test-trainers")
    for name in module.OptimizerNames:
        linear = name.value in ("sgd", "schedule_free_sgd", "lomo")
        assert scaling_rule(name) == ("linear" if linear else "sqrt"), name


@pytest.mark.trainers
def test_adafactor_with_relative_steps() -> None:
    """Adafactor with a rate is scaled; with relative steps it has none."""
    torch = pytest.importorskip("torch", reason="needs PyTorch: make test-torch")
    optimization = pytest.importorskip("transformers.optimization", reason="needs transformers: make test-trainers")
    fixed = {"lr": 1e-3, "relative_step": False, "scale_parameter": False}
    assert scaling_rule(optimization.Adafactor([torch.zeros(1)], **fixed)) == "sqrt"
    with pytest.raises(InvalidArgumentError, match="relative steps"):
        scaling_rule(optimization.Adafactor([torch.zeros(1)], lr=None))


@pytest.mark.trainers
def test_optimizers_of_keras(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keras's optimizers have a rule, except for Muon and the wrappers of several."""
    pytest.importorskip("torch", reason="needs PyTorch: make test-torch")
    monkeypatch.setenv("KERAS_BACKEND", "torch")
    pytest.importorskip("keras", reason="needs Keras: make test-trainers")
    optimizers: Any = importlib.import_module("keras.optimizers")
    for name in ("Adadelta", "Adafactor", "Adagrad", "Adam", "AdamW", "Adamax", "Ftrl", "Lion", "Nadam", "RMSprop"):
        assert scaling_rule(getattr(optimizers, name)) == "sqrt"
    assert scaling_rule(optimizers.LossScaleOptimizer(optimizers.SGD())) == "linear"


def test_rule_can_be_named() -> None:
    """`rule` scales for any other optimizer."""
    assert scaled_learning_rate(1.0, batch_size=8, default_batch_size=4, rule="linear") == 2.0
    assert scaled_learning_rate(1.0, batch_size=8, default_batch_size=4, rule="sqrt") == math.sqrt(2)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"optimizer": "sgdx"}, "'sgdx'"),
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


@pytest.mark.parametrize(
    ("steps", "batch_size", "scaled"),
    [(2000, 256, 2000), (2000, 512, 1000), (2000, 64, 8000), (3, 512, 2), (1, 4096, 1), (0, 64, 0), (10.5, 256, 11)],
)
def test_steps_pass_the_same_examples(steps: float, batch_size: int, scaled: int) -> None:
    """Twice the batch, half the steps: the nearest whole number, at least 1, and 0 stays 0."""
    found = scaled_steps(steps, batch_size=batch_size, default_batch_size=256)
    assert (found, type(found)) == (scaled, int)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"steps": -1}, "steps=-1"),
        ({"steps": math.inf}, "steps=inf"),
        ({"steps": "100"}, "steps='100'"),
        ({"steps": None}, "steps=None"),
        ({"batch_size": 0}, "batch_size=0"),
        ({"default_batch_size": math.nan}, "default_batch_size=nan"),
    ],
)
def test_steps_that_cannot_be_scaled(arguments: dict[str, Any], named: str) -> None:
    """Numbers of steps and batch sizes that are out of range are named in the error."""
    with pytest.raises(InvalidArgumentError, match=named):
        scaled_steps(**({"steps": 100, "batch_size": 8, "default_batch_size": 4} | arguments))
