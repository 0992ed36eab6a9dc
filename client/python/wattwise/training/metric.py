"""The metric as trainers give it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Literal, TypeAlias

from wattwise.errors import InvalidArgumentError, MetricTypeError, log

MetricReduction: TypeAlias = Literal["first", "mean", "sum", "min", "max"]

_REDUCTIONS: dict[str, Callable[[Sequence[float]], float]] = {
    "first": lambda values: values[0],
    "mean": lambda values: sum(values) / len(values),
    "sum": sum,
    "min": min,
    "max": max,
}


def checked_reduction(name: MetricReduction) -> MetricReduction:
    """The reduction of this name.

    Raises:
        InvalidArgumentError: if there is none.
    """
    if name not in _REDUCTIONS:
        raise InvalidArgumentError(f"reduce_metric={name!r} is not known; use one of {', '.join(_REDUCTIONS)}")
    return name


def reduced(values: Sequence[float], reduction: MetricReduction) -> float:
    """One metric of those of all ranks, by rank; NaN if any that counts is NaN."""
    if reduction != "first" and any(map(math.isnan, values)):
        # To min and max a NaN is larger or smaller depending on where it stands.
        return math.nan
    return _REDUCTIONS[reduction](values)


class NanWarning:
    """Warns of the first metric that is not finite."""

    def __init__(self) -> None:
        self._warned = False

    def look(self, epoch: int, value: float) -> None:
        """Warns if this is the first."""
        if self._warned or math.isfinite(value):
            return
        self._warned = True
        log.warning(
            "the metric of epoch %d is %s, which counts as target not reached; if the training has diverged, "
            "end it (said once)",
            epoch,
            value,
        )


def _has_several(metric: object) -> bool:
    count = getattr(metric, "numel", None)
    return callable(count) and count() != 1


def number(metric: object) -> float:
    """The metric as a float; takes whatever Python, NumPy and PyTorch call a number.

    Raises:
        MetricTypeError: if it is none; says what to pass.
    """
    try:
        if not isinstance(metric, str | bytes | bytearray):
            return float(metric)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        # What NumPy says of arrays with several elements helps nobody here.
        pass
    except RuntimeError:
        # What PyTorch says of them neither. Of a single one it is the GPU that failed, earlier, and is asked only now.
        if not _has_several(metric):
            raise
    given = (
        f"{metric!r:.80}" if isinstance(metric, str | bytes | None) else f"something of type {type(metric).__name__}"
    )
    raise MetricTypeError(
        f"on_evaluate() got {given} as metric: pass one number, such as 0.93; of an array or tensor its mean or .item()"
    ) from None
