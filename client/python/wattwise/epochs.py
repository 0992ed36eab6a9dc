"""The loop over epochs: how many there are, and how it was left."""

from __future__ import annotations

import dis
import sys

from wattwise.errors import InvalidArgumentError


def epoch_limit(asked: int | None, of_job: int) -> int:
    """The last epoch of a loop.

    Args:
        asked: what the trainer wants; None is the job's.
        of_job: the job's `max_epochs`.

    Raises:
        InvalidArgumentError: if it is no number of epochs.
    """
    if asked is None:
        return of_job
    if isinstance(asked, bool) or not isinstance(asked, int) or asked < 1:
        raise InvalidArgumentError(f"epochs() got {asked!r}: give a whole number from 1, or nothing for the job's own")
    return asked


def left_by_choice() -> bool:
    """Whether the `for` loop over the calling generator was left by `break` or `return`; asked on `GeneratorExit`.

    An exception closes the generator just as `break` does, before anybody can see it. What tells them apart is what
    the loop's frame is doing: it drops the generator as its next instruction, or was stopped in the middle of another.
    Where this cannot be told, as when something stands between the loop and the generator, the answer is no.
    """
    loop = sys._getframe(1).f_back  # noqa: SLF001 - the documented way to look at a caller
    return loop is not None and dis.opname[loop.f_code.co_code[loop.f_lasti]] in {"POP_TOP", "POP_ITER"}
