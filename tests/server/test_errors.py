"""Messages that say what to do."""

from __future__ import annotations

import pytest
from wattwise_server.errors import NoBatchSizeLeftError, jobs_command

RESET = "`wattwise jobs reset j` begins the search again"
READMIT = "`wattwise jobs readmit j BATCH_SIZE` brings one batch size back"
UNBAN = "`wattwise jobs unban j BATCH_SIZE` lifts a ban"
NEW = "register the job under a new job_id with"
OR = f"or fix the training, after which {RESET} and {READMIT}"
EASIER = "an easier target, a larger max_epochs or a larger beta_knob"


@pytest.mark.parametrize(
    ("causes", "remedy"),
    [
        ({"failed": [8]}, f"fix what makes trials crash, after which {RESET} and {READMIT}"),
        (
            {"out_of_memory": [8, 16]},
            f"{NEW} smaller batch_sizes; {OR}",
        ),
        (
            {"missed": [8], "untried": [4]},
            f"{NEW} other batch_sizes, {EASIER}; {OR}",
        ),
        (
            {"out_of_memory": [16], "missed": [8]},
            f"{NEW} other batch_sizes that fit into memory, {EASIER}; {OR}",
        ),
        (
            {"failed": [8], "missed": [8]},
            f"fix what makes trials crash, after which {RESET} and {READMIT}; or {NEW} other batch_sizes, {EASIER}",
        ),
        ({"banned": [8]}, UNBAN),
        ({"banned": [8], "untried": [16]}, f"{UNBAN}, {READMIT}"),
    ],
)
def test_job_without_a_batch_size_says_what_brings_it_back(causes: dict[str, list[int]], remedy: str) -> None:
    """The metadata has what happened to each batch size; the message ends with what helps, and with the commands."""
    error = NoBatchSizeLeftError("j", causes)
    assert error.message.endswith(f"); {remedy}")
    listed = {cause: ", ".join(map(str, sizes)) for cause, sizes in causes.items()}
    assert listed.items() <= error.metadata.items()


def test_commands_can_be_copied() -> None:
    """A job id that a shell would split or expand is quoted."""
    assert jobs_command("readmit", "team a; $HOME", 64) == "`wattwise jobs readmit 'team a; $HOME' 64`"
