"""PyTorch's DataLoader with the server's batch size, in one process; tests of ranks are in `test_distributed.py`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from wattwise import BatchSizeOptimizer, data_loader
from wattwise.errors import InvalidArgumentError, TrainerSetupError

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


class Stream(torch.utils.data.IterableDataset):  # type: ignore[name-defined]  # PyTorch is optional
    """Examples without a known length."""

    def __init__(self, examples: int) -> None:
        self._examples = examples

    def __iter__(self) -> Iterator[int]:
        return iter(range(self._examples))


class SizedStream(Stream):
    """Examples of a known length."""

    def __len__(self) -> int:
        return self._examples


def test_dataset_that_is_a_stream(bso: BatchSizeOptimizer) -> None:
    """An IterableDataset is split into batches in its order."""
    assert [len(batch) for batch in data_loader(bso, Stream(20))] == [16, 4]


@pytest.mark.parametrize(
    ("examples", "options", "steps", "sizes"),
    [
        (40, {}, 1, [16, 16, 8]),
        (40, {"max_per_device": 16}, 1, [16, 16, 8]),
        (40, {"max_per_device": 9}, 2, [8, 8, 8, 8, 8]),
        (38, {"max_per_device": 8}, 2, [8, 8, 8, 8, 6]),
        (38, {"max_per_device": 5}, 4, [4] * 9 + [2]),
        # The last 8 are half a batch.
        (40, {"max_per_device": 8, "drop_last": True}, 2, [8, 8, 8, 8]),
        (38, {"max_per_device": 5, "drop_last": True}, 4, [4] * 8),
        (32, {"max_per_device": 1, "drop_last": True}, 16, [1] * 32),
    ],
)
def test_accumulated_batches(
    bso: BatchSizeOptimizer, examples: int, options: dict[str, Any], steps: int, sizes: list[int]
) -> None:
    """A batch is the largest up to the limit that divides the share; `drop_last` drops what does not fill a share."""
    loader = data_loader(bso, torch.arange(examples), **options)
    batches = [batch.tolist() for batch in loader]
    assert [len(batch) for batch in batches] == sizes
    assert [sample for batch in batches for sample in batch] == list(range(sum(sizes)))
    assert (loader.accumulation_steps, len(loader)) == (steps, len(sizes))


def test_accumulation_with_shuffling(bso: BatchSizeOptimizer) -> None:
    """Each pass has another order, of other examples if some are dropped."""
    loader = data_loader(bso, torch.arange(40), shuffle=True, drop_last=True, max_per_device=8)
    first, second = ([sample for batch in loader for sample in batch.tolist()] for _ in range(2))
    assert len(set(first)) == len(set(second)) == 32
    assert first != second


@pytest.mark.parametrize("bad", [0, -1, 2.5, "8"])
def test_limit_that_is_no_size(bso: BatchSizeOptimizer, bad: Any) -> None:
    """A limit that is not a positive integer is refused."""
    with pytest.raises(TrainerSetupError, match="max_per_device"):
        data_loader(bso, torch.arange(40), max_per_device=bad)


@pytest.mark.parametrize("limit", [None, 4])
@pytest.mark.parametrize("dataset", [torch.arange(15), SizedStream(15)], ids=["dataset", "stream"])
def test_every_batch_is_dropped(bso: BatchSizeOptimizer, dataset: Any, limit: int | None) -> None:
    """`drop_last` with fewer examples than the batch size is refused; the error says which batch sizes would do."""
    with pytest.raises(TrainerSetupError, match=r"drop_last=True .* 15 examples, .* at most 15"):
        data_loader(bso, dataset, drop_last=True, max_per_device=limit)
    assert len(next(iter(data_loader(bso, dataset)))) == 15


def test_rank_of_several(grpc_addr: str) -> None:
    """The limit and `drop_last` apply to the rank's share of the batch size and its part of the dataset."""
    ranks: dict[str, Any] = {"rank": 0, "world_size": 2, "broadcast": lambda message: message}
    with BatchSizeOptimizer(grpc_addr, job_spec(), monitor=StepMonitor(), **ranks) as bso:
        loader = data_loader(bso, torch.arange(30), drop_last=True, max_per_device=5)
        assert [len(batch) for batch in loader] == [4, 4]
        assert loader.accumulation_steps == 2
        with pytest.raises(TrainerSetupError, match=r"7 examples, .* size 16 is 8; .* at most 14"):
            data_loader(bso, torch.arange(14), drop_last=True)


def test_empty_dataset(bso: BatchSizeOptimizer) -> None:
    """A dataset without examples is refused."""
    with pytest.raises(TrainerSetupError, match="no example"):
        data_loader(bso, torch.arange(0))


def test_unknown_length(bso: BatchSizeOptimizer) -> None:
    """A dataset or a sampler without a length is not checked."""
    assert list(data_loader(bso, Stream(15), drop_last=True)) == []
    loader = data_loader(bso, torch.arange(40), sampler=iter(range(40)), drop_last=True, max_per_device=8)
    assert [len(batch) for batch in loader] == [8, 8, 8, 8]


@pytest.mark.parametrize("arguments", [{"batch_size": 16}, {"batch_sampler": [[0, 1]]}])
def test_batch_size_argument(bso: BatchSizeOptimizer, arguments: dict[str, Any]) -> None:
    """A batch size in the arguments is refused."""
    with pytest.raises(InvalidArgumentError, match=next(iter(arguments))):
        data_loader(bso, torch.arange(40), **arguments)
