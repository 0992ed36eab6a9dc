"""Checks all fields of a request, so that one error names the faults of all of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, overload

from wattwise_server.errors import InvalidRequestError, Violation

A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")
D = TypeVar("D")


@overload
def together(one: Callable[[], A], two: Callable[[], B], /) -> tuple[A, B]: ...


@overload
def together(one: Callable[[], A], two: Callable[[], B], three: Callable[[], C], /) -> tuple[A, B, C]: ...


@overload
def together(
    one: Callable[[], A], two: Callable[[], B], three: Callable[[], C], four: Callable[[], D], /
) -> tuple[A, B, C, D]: ...


def together(*checks: Callable[[], Any]) -> tuple[Any, ...]:
    """Returns what the checks of a request's fields return.

    Raises:
        InvalidRequestError: with the faults of all checks that refuse the request.
    """
    values: list[Any] = []
    faults: list[Violation] = []
    for check in checks:
        try:
            values.append(check())
        except InvalidRequestError as error:  # noqa: PERF203 - the other checks still run
            faults += error.violations
    if faults:
        raise InvalidRequestError(*faults)
    return tuple(values)
