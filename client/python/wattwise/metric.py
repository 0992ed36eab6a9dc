"""The metric as trainers give it."""

from __future__ import annotations

from wattwise.errors import MetricTypeError


def number(metric: object) -> float:
    """The metric as a float; takes whatever Python, NumPy and PyTorch call a number.

    Raises:
        MetricTypeError: if it is none; says what to pass.
    """
    try:
        if not isinstance(metric, str | bytes | bytearray):
            return float(metric)  # type: ignore[arg-type]
    except (TypeError, ValueError, RuntimeError, OverflowError):
        # What NumPy and PyTorch say of arrays with several elements helps nobody here.
        pass
    given = (
        f"{metric!r:.80}" if isinstance(metric, str | bytes | None) else f"something of type {type(metric).__name__}"
    )
    raise MetricTypeError(
        f"on_evaluate() got {given} as metric: pass one number, such as 0.93; of an array or tensor its mean or .item()"
    ) from None
