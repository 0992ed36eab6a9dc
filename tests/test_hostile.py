"""The Python client's example of a training loop against a hostile server.

`tests.hostile_check` does the same with those of the other languages.
"""

from __future__ import annotations

import pytest

from tests.hostile.behaviours import BEHAVIOURS
from tests.hostile.server import Behaviour
from tests.hostile.trials import PYTHON, faults, run
from tests.live_server import LiveServer


@pytest.mark.parametrize(
    "behaviour",
    [
        pytest.param(each, id=each.does, marks=pytest.mark.soak if each.waits else pytest.mark.thorough)
        for each in BEHAVIOURS
    ],
)
def test_trainer_survives(server: LiveServer, behaviour: Behaviour) -> None:
    """Whatever the server does, a training ends as it should: with a batch size of its own and a readable message."""
    done = run(PYTHON, behaviour, server.address)
    assert list(faults(done, behaviour)) == [], done.output
