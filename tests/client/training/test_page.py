"""The code in docs/trainers.md is run."""

from __future__ import annotations

import doctest
import re
from pathlib import Path
from typing import Any

from wattwise import BatchSizeOptimizer, Client, v1

from tests.client.training.script import StepMonitor, epochs, job_spec

PAGE = Path(__file__).parents[3] / "docs/trainers.md"


def test_your_own_loop(grpc_addr: str) -> None:
    """The page's loop trains until the target is reached, also if the job leaves `max_epochs` to the server."""
    (first, *_) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert first.count("...") == 1
    bso = BatchSizeOptimizer(grpc_addr, job_spec(max_epochs=None), monitor=StepMonitor())
    loop = first.replace("...", "metric = next(metrics)")
    exec(loop, {"bso": bso, "metrics": iter([0.1, 0.2, 0.95])})  # noqa: S102 - our own code
    with Client(grpc_addr) as client:
        assert epochs(client, bso.trial.id) == [1, 2, 3]
        assert client.get_trial(bso.trial.id).trial.end_reason == v1.END_REASON_TARGET_REACHED


def test_attempts(grpc_addr: str) -> None:
    """The page's loop over attempts leaves the model that reached the target."""
    _, second, *_ = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    job = job_spec(max_epochs=1, policy="POLICY_KNOWLEDGE_GRADIENT")
    given: dict[str, Any] = {
        "bso": BatchSizeOptimizer(grpc_addr, job, monitor=StepMonitor()),
        "seed": 7,
        "build": lambda seed: seed,
        "make_loader": lambda batch_size: batch_size,
        "train_and_evaluate": lambda model, _: {7: 0.1, 8: 0.95}[model],
    }
    exec(second, given)  # noqa: S102 - our own code
    assert given["model"] == 8
    assert given["loader"] == given["bso"].trial.id.batch_size


def test_eta_of_prices() -> None:
    """The page's values of eta are those that the function returns."""
    (block,) = re.findall(r"```pycon\n(.*?)```", PAGE.read_text(), re.DOTALL)
    examples = doctest.DocTestParser().get_doctest(block, {}, PAGE.name, str(PAGE), 0)
    assert doctest.DocTestRunner().run(examples) == (0, 5)
