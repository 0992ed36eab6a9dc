"""Runs a use case again when another server was faster."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from wattwise_server.errors import ConflictError, StorageUnavailableError

_P = ParamSpec("_P")
_T = TypeVar("_T")

_TRIES = 20
_PAUSE_SECONDS = 0.005
"""The second pause. There is no first one, and each further one is longer, up to 20 times this."""


def retried(use_case: Callable[_P, Coroutine[Any, Any, _T]]) -> Callable[_P, Coroutine[Any, Any, _T]]:
    """Runs a use case again after each `ConflictError`; nothing of the former run was saved.

    Raises:
        StorageUnavailableError: other servers were faster every time.
    """

    @wraps(use_case)
    async def run(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        for attempt in range(_TRIES):
            try:
                return await use_case(*args, **kwargs)
            except ConflictError:  # noqa: PERF203 - tries again
                # Two servers that always pause for the same time would meet again.
                await asyncio.sleep(random.random() * attempt * _PAUSE_SECONDS)  # noqa: S311 - no secret
        raise StorageUnavailableError("other servers change this job all the time; nothing was saved, retry")

    return run
