"""PyTorch's DataLoader with the server's batch size, in one process; tests of ranks are in `test_distributed.py`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from wattwise import BatchSizeOptimizer, InvalidArgumentError, data_loader

from tests.client.training.script import StepMonitor, job_spec

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch", reason="needs PyTorch: make test-torch")


@pytest.fixture
def bso(grpc_addr: str) -> Iterator[BatchSizeOptimizer]:
    """A training with batch size 16 that has not asked for it yet."""
    with BatchSizeOptimizer(grpc_addr, job_spec(), monitor=StepMonitor()) as training:
        yield training


def test_batches_are_of_the_chosen_size(bso: BatchSizeOptimizer) -> None:
    """The loader asks for the batch size and returns the whole dataset in batches of that size."""
    batches = [batch.tolist() for batch in data_loader(bso, torch.arange(40))]
    assert [len(batch) for batch in batches] == [16, 16, 8]
    assert [sample for batch in batches for sample in batch] == list(range(40))
    assert bso.trial.per_rank_batch_size == 16


def test_other_arguments_are_passed_on(bso: BatchSizeOptimizer) -> None:
    """All other arguments go to DataLoader."""
    loader = data_loader(bso, torch.arange(40), shuffle=True, drop_last=True, collate_fn=sorted, timeout=0)
    assert [len(batch) for batch in loader] == [16, 16]
    assert next(iter(loader)) != next(iter(loader))
    sampled = data_loader(bso, torch.arange(40), sampler=range(5))
    assert [batch.tolist() for batch in sampled] == [[0, 1, 2, 3, 4]]
    with pytest.raises(TypeError, match="no_such_argument"):
        data_loader(bso, torch.arange(40), no_such_argument=1)


def test_dataset_that_is_a_stream(bso: BatchSizeOptimizer) -> None:
    """An IterableDataset is split into batches in its order."""

    class Stream(torch.utils.data.IterableDataset):  # type: ignore[name-defined]  # PyTorch is optional
        def __iter__(self) -> Iterator[int]:
            return iter(range(20))

    assert [len(batch) for batch in data_loader(bso, Stream())] == [16, 4]


@pytest.mark.parametrize("arguments", [{"batch_size": 16}, {"batch_sampler": [[0, 1]]}])
def test_batch_size_argument(bso: BatchSizeOptimizer, arguments: dict[str, Any]) -> None:
    """A batch size in the arguments is refused."""
    with pytest.raises(InvalidArgumentError, match=next(iter(arguments))):
        data_loader(bso, torch.arange(40), **arguments)
