"""Messages that say what to do."""

from __future__ import annotations

import pytest
from wattwise_server.errors import NoBatchSizeConvergedError

CHANGED = "other batch_sizes, an easier target_metric, a larger max_epochs or a larger beta_knob"


@pytest.mark.parametrize(
    ("causes", "remedy"),
    [
        ({"out_of_memory": [8, 16]}, "list smaller batch_sizes, and register the job under a new job_id"),
        ({"missed": [8], "untried": [4]}, f"register the job under a new job_id with {CHANGED}"),
        ({"failed": [8], "missed": [8]}, f"crash, and register the job under a new job_id with {CHANGED}"),
    ],
)
def test_job_without_a_batch_size_says_what_brings_it_back(causes: dict[str, list[int]], remedy: str) -> None:
    """The metadata has what happened to each batch size; the message ends with what helps against that."""
    error = NoBatchSizeConvergedError("j", 0, causes)
    assert error.message.endswith(remedy)
    listed = {cause: ", ".join(map(str, sizes)) for cause, sizes in causes.items()}
    assert listed.items() <= error.metadata.items()
