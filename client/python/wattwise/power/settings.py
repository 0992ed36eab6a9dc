"""How power limits are profiled: what the program says, else what `wattwise run` told it, else what is usual."""

from __future__ import annotations

import os
from typing import NamedTuple

from wattwise.errors import PowerProfileError
from wattwise.spec import to_number

_USUAL_STEP_WATTS, _USUAL_WARMUP_ITERS, _USUAL_MEASURE_ITERS = 25.0, 10, 40
_PREFIX = "WATTWISE_"
_SWITCH = {"1": True, "0": False}


class Settings(NamedTuple):
    """The settings of a walk.

    Attributes:
        step_watts: from one limit to the next, in watts.
        warmup_iters: unmeasured steps at every limit.
        measure_iters: measured steps at every limit.
        observer_mode: whether limits are profiled but not kept.
    """

    step_watts: float
    warmup_iters: int
    measure_iters: int
    observer_mode: bool


def settings(
    step_watts: float | None, warmup_iters: int | None, measure_iters: int | None, observer_mode: bool | None
) -> Settings:
    """The settings, each as it is given; None is what its `WATTWISE_*` variable says, else the usual value.

    Raises:
        PowerProfileError: if one makes no sense; names the argument or the variable.
    """
    return Settings(
        _number("step_watts", step_watts, "PROFILE_STEP_WATTS", _USUAL_STEP_WATTS, 1.0),
        _whole("profile_warmup_iters", warmup_iters, "PROFILE_WARMUP_ITERS", _USUAL_WARMUP_ITERS, 0),
        _whole("profile_measure_iters", measure_iters, "PROFILE_MEASURE_ITERS", _USUAL_MEASURE_ITERS, 1),
        _switch("observer_mode", observer_mode, "OBSERVER_MODE"),
    )


def _number(name: str, given: float | None, variable: str, usual: float, least: float) -> float:
    if given is not None:
        return _checked(name, given, to_number(given), least)
    told = _told(variable)
    return usual if told is None else _checked(_PREFIX + variable, told, _read(told, float), least)


def _whole(name: str, given: int | None, variable: str, usual: int, least: int) -> int:
    if given is not None:
        value = to_number(given)
        return int(_checked(name, given, value if value % 1 == 0 else float("nan"), least))
    told = _told(variable)
    return usual if told is None else int(_checked(_PREFIX + variable, told, _read(told, int), least))


def _read(told: str, kind: type[int] | type[float]) -> float:
    try:
        return kind(told)
    except ValueError:
        return float("nan")


def _checked(name: str, said: object, value: float, least: float) -> float:
    if not least <= value < float("inf"):
        what = "a whole number, " if name.lower().endswith("iters") else ""
        raise PowerProfileError(f"{name}={said!r} makes no sense; give {what}{least:g} or more")
    return value


def _switch(name: str, given: bool | None, variable: str) -> bool:
    if given is not None:
        if not isinstance(given, bool):
            raise PowerProfileError(f"{name}={given!r} makes no sense; give True or False")
        return given
    told = _told(variable)
    if told is None:
        return False
    if told not in _SWITCH:
        raise PowerProfileError(f"{_PREFIX}{variable}={told!r} makes no sense; give 1 or 0")
    return _SWITCH[told]


def _told(variable: str) -> str | None:
    """What a variable says; one that is empty is as one that is not there."""
    return os.environ.get(_PREFIX + variable) or None
