"""The batch size that a process passes on to further ranks that its trainer starts, as Lightning does."""

from __future__ import annotations

import json
import os

from wattwise.training.ranks import not_connected
from wattwise.training.split import GlobalBatch

_VARIABLE = "WATTWISE_INHERITED_BATCH"


def pass_on(batch: GlobalBatch) -> None:
    """Passes the batch size on to the processes that this one starts."""
    os.environ[_VARIABLE] = json.dumps(batch)


def inherited_batch() -> GlobalBatch | None:
    """Returns the batch size that rank 0 has passed on, until the processes are connected; None elsewhere."""
    # torchrun sets RANK; Lightning does not.
    if _VARIABLE not in os.environ or "RANK" in os.environ or os.environ.get("LOCAL_RANK", "0") == "0":
        return None
    if not_connected() is None:
        return None
    size, of_job = json.loads(os.environ[_VARIABLE])
    return GlobalBatch(size, tuple(of_job))
