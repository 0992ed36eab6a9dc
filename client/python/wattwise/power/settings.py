"""The settings of profiling: the constructor's arguments, else the variables of `wattwise run`, else the defaults."""

from __future__ import annotations

import math
from typing import NamedTuple

from wattwise.errors import InvalidArgumentError
from wattwise.rules import finite
from wattwise.variables import read_switch, read_variable


class ProfileSettings(NamedTuple):
    """How power limits are profiled.

    Attributes:
        step_watts: from one limit to the next, in watts.
        warmup_iters: unmeasured steps at each limit.
        measure_iters: measured steps at each limit.
        observer_mode: whether to train at the highest limit and report the usage at the cheapest.
    """

    step_watts: float = 25.0
    warmup_iters: int = 10
    measure_iters: int = 40
    observer_mode: bool = False


_DEFAULTS = ProfileSettings()


def profile_settings(
    step_watts: float | None, warmup_iters: int | None, measure_iters: int | None, observer_mode: bool | None
) -> ProfileSettings:
    """Returns the settings; for None, the value of the `WATTWISE_*` variable, or the default if that is unset or empty.

    Raises:
        InvalidArgumentError: if one is invalid; the message names the argument or the variable.
    """
    if observer_mode is None:
        observer_mode = read_switch("WATTWISE_OBSERVER_MODE", InvalidArgumentError)
    elif not isinstance(observer_mode, bool):
        raise InvalidArgumentError(f"observer_mode={observer_mode!r} is invalid; use True or False")
    return ProfileSettings(
        _number("step_watts", step_watts, "WATTWISE_PROFILE_STEP_WATTS", _DEFAULTS.step_watts, least=1),
        _integer(
            "profile_warmup_iters", warmup_iters, "WATTWISE_PROFILE_WARMUP_ITERS", _DEFAULTS.warmup_iters, least=0
        ),
        _integer(
            "profile_measure_iters", measure_iters, "WATTWISE_PROFILE_MEASURE_ITERS", _DEFAULTS.measure_iters, least=1
        ),
        _DEFAULTS.observer_mode if observer_mode is None else observer_mode,
    )


def _number(name: str, value: object, variable: str, default: float, *, least: int, kind: str = "") -> float:
    if value is not None:
        number = finite(value)
    else:
        name, value = variable, read_variable(variable, InvalidArgumentError)
        if not value:
            return default
        try:
            number = int(value) if kind else float(value)
        except ValueError:
            number = math.nan
    if not least <= number < math.inf or (kind and number % 1):
        raise InvalidArgumentError(f"{name}={value!r} is invalid; use {kind}{least} or more")
    return number


def _integer(name: str, value: object, variable: str, default: int, *, least: int) -> int:
    return int(_number(name, value, variable, default, least=least, kind="a whole number, "))
