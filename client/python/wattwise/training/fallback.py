"""The batch size to train with if the server has none to offer."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from wattwise.errors import InvalidArgumentError
from wattwise.spec import job_message
from wattwise.variables import read_variable

if TYPE_CHECKING:
    from wattwise.spec import JobSpec

DEFAULT = "default"
_VARIABLE = "WATTWISE_FALLBACK"


def checked_fallback(chosen: object, job: JobSpec) -> int | None:
    """Returns the batch size for a user's argument. None stands for the variable `WATTWISE_FALLBACK`, or no fallback.

    Raises:
        InvalidArgumentError: if it is not one of the job's batch sizes, or "default".
        InvalidJobSpecError: if a value of the job has the wrong type.
    """
    name = "fallback"
    if chosen is None:
        name, chosen = _VARIABLE, read_variable(_VARIABLE, InvalidArgumentError)
        if not chosen:
            return None
    if isinstance(chosen, str) and chosen.isascii() and chosen.isdecimal():
        chosen = int(chosen)
    if chosen == DEFAULT:
        return job.default_batch_size
    # Wrong batch sizes are a fault of the job, not of the fallback. The GPUs, which prices need, are not known yet.
    sizes = job_message(replace(job, energy_price_per_kwh=None, gpu_hour_price=None)).batch_sizes
    if isinstance(chosen, int) and not isinstance(chosen, bool) and (chosen in sizes or not sizes):
        return chosen
    raise InvalidArgumentError(
        f"{name}={chosen!r} is invalid: use one of the job's batch_sizes, {', '.join(map(str, sizes))}, or {DEFAULT!r} "
        "for its default_batch_size; to train without a fallback, omit it"
    )
