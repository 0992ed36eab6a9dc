"""Validation metrics: conversion to a number, and reduction over ranks."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Literal, TypeAlias

from wattwise.errors import InvalidArgumentError, MetricTypeError

MetricReduction: TypeAlias = Literal["first", "mean", "sum", "min", "max"]

_REDUCTIONS: dict[str, Callable[[Sequence[float]], float]] = {
    "first": lambda values: values[0],
    "mean": lambda values: sum(values) / len(values),
    "sum": sum,
    "min": min,
    "max": max,
}


def checked_reduction(name: MetricReduction) -> MetricReduction:
    """Returns `name`.

    Raises:
        InvalidArgumentError: if it is not a reduction.
    """
    if name not in tuple(_REDUCTIONS):
        raise InvalidArgumentError(f"reduce_metric={name!r} is not known; use one of {', '.join(_REDUCTIONS)}")
    return name


def reduced(values: Sequence[float], reduction: MetricReduction) -> float:
    """Returns the metrics of all ranks, by rank, as one; NaN if any metric that counts is NaN."""
    if reduction != "first" and any(map(math.isnan, values)):
        # The result of min and max would depend on the position of the NaN.
        return math.nan
    return _REDUCTIONS[reduction](values)


def _has_several(metric: object) -> bool:
    count = getattr(metric, "numel", None)
    return callable(count) and count() != 1


def metric_value(metric: object) -> float:
    """Returns the metric as a float; accepts the numbers of Python, NumPy and PyTorch, but no truth values.

    Raises:
        MetricTypeError: if it is not a number; says what to pass.
    """
    # Arrays and tensors of truth values have a type of their own, whose name depends on the library.
    is_bool = isinstance(metric, bool) or "bool" in str(getattr(metric, "dtype", ""))
    try:
        if not is_bool and not isinstance(metric, str | bytes | bytearray):
            return float(metric)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        # NumPy's error for an array with several elements does not name the remedy.
        pass
    except RuntimeError:
        # Nor does PyTorch's. For a single element the error comes from an earlier, asynchronous failure of the GPU.
        if not _has_several(metric):
            raise
    is_short = isinstance(metric, str | bytes | bool | None)
    shown = f"{metric!r:.80}" if is_short else f"an object of type {type(metric).__name__}"
    raise MetricTypeError(
        f"on_evaluate() got {shown}, which is not a number: pass one number, such as 0.93; "
        "for an array or tensor its mean or .item()"
    ) from None
