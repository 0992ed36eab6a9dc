"""The code in docs/trainers.md is run."""

from __future__ import annotations

import doctest
import re
from pathlib import Path
from typing import Any

import pytest
from wattwise import BatchSizeOptimizer, Client, data_loader, scaled_learning_rate, scaled_steps, v1

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
        assert epochs(client, bso.trial) == [1, 2, 3]
        assert client.get_trial(bso.trial).trial.end_reason == v1.END_REASON_TARGET_REACHED


def test_attempts(grpc_addr: str) -> None:
    """The page's loop over attempts leaves the model that reached the target."""
    _, second, *_ = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    job = job_spec(max_epochs=1, policy="knowledge_gradient")
    given: dict[str, Any] = {
        "bso": BatchSizeOptimizer(grpc_addr, job, monitor=StepMonitor()),
        "seed": 7,
        "build": lambda seed: seed,
        "make_loader": lambda batch_size: batch_size,
        "train_and_evaluate": lambda model, _: {7: 0.1, 8: 0.95}[model],
    }
    exec(second, given)  # noqa: S102 - our own code
    assert given["model"] == 8
    assert given["loader"] == given["bso"].trial.batch_size


def test_loop_that_counts_steps(grpc_addr: str) -> None:
    """The page's loop over iterations passes the same examples with every batch size, in as many epochs as it says."""
    (block,) = (
        found for found in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL) if ".steps(" in found
    )
    job = job_spec(batch_sizes=[32, 64, 128], default_batch_size=64, max_epochs=20, policy="knowledge_gradient")
    steps: dict[int, list[tuple[int, ...]]] = {}
    given: dict[str, Any] = {
        "bso": BatchSizeOptimizer(grpc_addr, job, monitor=StepMonitor()),
        "scaled_learning_rate": scaled_learning_rate,
        "scaled_steps": scaled_steps,
        "build": lambda _: None,
        "learning_rate": lambda *schedule: schedule,
        "train_step": lambda _, size, schedule: steps.setdefault(size, []).append(schedule),
        "evaluate": lambda _: 0.95 if len(steps) == 2 else 0.1,
    }
    exec(block, given)  # noqa: S102 - our own code
    (first, trained), (second, _) = steps.items()
    assert (first, len(trained), trained[-1]) == (64, 2000, (1999, 200, 2000))
    assert steps[second][0] == (0, 200 * 64 // second, 2000 * 64 // second)
    assert len(steps[second]) == 100 * 64 // second


@pytest.mark.torch
def test_accumulated_gradients(grpc_addr: str) -> None:
    """The page's loop updates the weights as whole batches do, also after an incomplete one."""
    torch = pytest.importorskip("torch", reason="needs PyTorch: make test-torch")
    (block,) = (
        found for found in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL) if "enumerate(" in found
    )
    inputs = torch.randn(40, 4, generator=torch.Generator().manual_seed(0))
    weights = []
    with BatchSizeOptimizer(grpc_addr, job_spec(), monitor=StepMonitor()) as bso:
        for limit in (None, 5):
            model = torch.nn.Linear(4, 1)
            torch.nn.init.ones_(model.weight)
            torch.nn.init.zeros_(model.bias)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
            dataset = torch.utils.data.TensorDataset(inputs[:32], inputs[:32, :1])
            loader = data_loader(bso, dataset, max_per_device=limit)
            assert loader.accumulation_steps == (1 if limit is None else 4)
            given = {"loader": loader, "model": model, "optimizer": optimizer, "criterion": torch.nn.MSELoss()}
            exec(block, given)  # noqa: S102 - our own code
            weights.append(model.weight.detach().clone())
            # Half a batch more: the last update takes place.
            given["loader"] = data_loader(
                bso, torch.utils.data.TensorDataset(inputs, inputs[:, :1]), max_per_device=limit
            )
            exec(block, given)  # noqa: S102 - our own code
            assert model.weight.grad is None
    torch.testing.assert_close(*weights)


def test_eta_of_prices() -> None:
    """The page's values of eta are those that the function returns."""
    (block,) = re.findall(r"```pycon\n(.*?)```", PAGE.read_text(), re.DOTALL)
    examples = doctest.DocTestParser().get_doctest(block, {}, PAGE.name, str(PAGE), 0)
    assert doctest.DocTestRunner().run(examples) == (0, 5)
