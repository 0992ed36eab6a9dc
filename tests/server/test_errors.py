"""Messages that say what to do."""

from __future__ import annotations

import pytest
from wattwise_server.errors import AGAINST_MISSES, NoBatchSizeConvergedError, jobs_command

BACK = (
    "; once the cause is fixed, `wattwise jobs reset j` begins the search again, and "
    "`wattwise jobs allow j BATCH_SIZE` brings one batch size back"
)


@pytest.mark.parametrize(
    ("causes", "remedy"),
    [
        ({"failed": [8]}, "fix what makes trials crash"),
        ({"out_of_memory": [8, 16]}, "register the job under a new job_id with smaller batch_sizes"),
        ({"missed": [8], "untried": [4]}, AGAINST_MISSES),
        ({"out_of_memory": [16], "missed": [8]}, AGAINST_MISSES),
        ({"failed": [8], "missed": [8]}, f"fix what makes trials crash or {AGAINST_MISSES}"),
    ],
)
def test_job_without_a_batch_size_says_what_brings_it_back(causes: dict[str, list[int]], remedy: str) -> None:
    """The metadata has what happened to each batch size; the message ends with what helps, and with the commands."""
    error = NoBatchSizeConvergedError("j", 0, causes)
    assert error.message.endswith(f"); {remedy}{BACK}")
    listed = {cause: ", ".join(map(str, sizes)) for cause, sizes in causes.items()}
    assert listed.items() <= error.metadata.items()


def test_commands_can_be_copied() -> None:
    """A job id that a shell would split or expand is quoted."""
    assert jobs_command("allow", "team a; $HOME", 64) == "`wattwise jobs allow 'team a; $HOME' 64`"
