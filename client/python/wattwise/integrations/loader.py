"""PyTorch's DataLoader with the batch size that the server chose."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from wattwise.errors import InvalidArgumentError

if TYPE_CHECKING:
    from wattwise.training.optimizer import BatchSizeOptimizer


def data_loader(
    bso: BatchSizeOptimizer, dataset: Any, *, shuffle: bool | None = None, drop_last: bool = False, **options: Any
) -> Any:
    """Creates a `torch.utils.data.DataLoader` whose batches add up to the global batch size over all ranks.

        loader = data_loader(bso, dataset, shuffle=True, num_workers=4)

    With several ranks, a `DistributedSampler` gives each rank its part of the dataset, in a new order in every pass; do
    not call `set_epoch`. An `IterableDataset` has no sampler: it must give each rank its part itself. Asks for the
    batch size if that has not been done.

    Args:
        bso: the optimizer of the trial.
        dataset: a PyTorch dataset.
        shuffle: whether each pass has a new order.
        drop_last: whether to drop the last batch if it is smaller. With several ranks, also drops the remainder when
            the dataset is split; otherwise some samples are repeated.
        options: all other arguments of `DataLoader`; a `sampler` must give each rank its part itself.

    Raises:
        TrainerSetupError: if the number of ranks does not divide the batch size; names the sizes that it divides.
        InvalidArgumentError: if the options contain a batch size.
        ModuleNotFoundError: if PyTorch is not installed.
        WattwiseError: as documented at `get_batch_size`.
    """
    for name in ("batch_size", "batch_sampler"):
        if name in options:
            raise InvalidArgumentError(f"data_loader() got {name}, but the server chooses the batch size: omit it")
    # Any for type checkers, because PyTorch is optional.
    torch_data: Any = importlib.import_module("torch.utils.data")
    bso.get_batch_size()
    trial, iterable = bso.trial, isinstance(dataset, torch_data.IterableDataset)
    size = trial.per_rank_batch_size
    if trial.world_size > 1 and options.get("sampler") is None and not iterable:
        parts = {"num_replicas": trial.world_size, "rank": trial.rank, "shuffle": bool(shuffle), "drop_last": drop_last}
        options["sampler"] = _Shard(torch_data.DistributedSampler(dataset, **parts), bso.last_epoch)
        shuffle = None
    return torch_data.DataLoader(dataset, batch_size=size, shuffle=shuffle, drop_last=drop_last, **options)


class _Shard:
    """A rank's part of a dataset, in an order that all ranks share and that is new in every pass."""

    def __init__(self, sampler: Any, epoch: int) -> None:
        self._sampler = sampler
        # After a checkpoint the orders continue.
        sampler.set_epoch(epoch)

    def __iter__(self) -> Iterator[int]:
        samples: Iterator[int] = iter(self._sampler)
        self._sampler.set_epoch(self._sampler.epoch + 1)
        return samples

    def __len__(self) -> int:
        size: int = len(self._sampler)
        return size

    def set_epoch(self, epoch: int) -> None:
        """Sets the order of the next pass, for loops that are written for a `DistributedSampler`."""
        self._sampler.set_epoch(epoch)
