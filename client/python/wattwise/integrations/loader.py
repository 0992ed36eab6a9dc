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
    """A `torch.utils.data.DataLoader` whose batches make up the global batch size over all ranks.

        loader = data_loader(bso, dataset, shuffle=True, num_workers=4)

    With several ranks a `DistributedSampler` gives each its part of the dataset, shuffled anew in every pass; its
    `set_epoch` need not be called. An `IterableDataset` has no sampler: it must give each rank its part by itself. Asks
    for the batch size if that has not been done.

    Args:
        bso: whose batch size it is.
        dataset: a PyTorch dataset.
        shuffle: whether each pass has an order of its own.
        drop_last: whether to leave out the last batch if it is smaller. With several ranks, also what is left over
            when the dataset is split; otherwise some samples come twice.
        options: all other arguments of `DataLoader`; a `sampler` must give each rank its part by itself.

    Raises:
        TrainerSetupError: if the ranks do not divide the batch size; says which sizes they do divide.
        InvalidArgumentError: if the options name a batch size of their own.
        ModuleNotFoundError: if PyTorch is not installed.
        WattwiseError: as `get_batch_size` says.
    """
    for name in ("batch_size", "batch_sampler"):
        if name in options:
            raise InvalidArgumentError(f"data_loader() got {name}, but the server chooses the batch size: leave it out")
    # Any to type checkers: PyTorch need not be installed where these run.
    torch_data: Any = importlib.import_module("torch.utils.data")
    bso.get_batch_size()
    size, iterable = bso.per_rank_batch_size, isinstance(dataset, torch_data.IterableDataset)
    if bso.world_size > 1 and options.get("sampler") is None and not iterable:
        parts = {"num_replicas": bso.world_size, "rank": bso.rank, "shuffle": bool(shuffle), "drop_last": drop_last}
        options["sampler"] = _Shard(torch_data.DistributedSampler(dataset, **parts), bso.last_epoch)
        shuffle = None
    return torch_data.DataLoader(dataset, batch_size=size, shuffle=shuffle, drop_last=drop_last, **options)


class _Shard:
    """A rank's part of a dataset, in an order that is the same for all ranks and another one in every pass."""

    def __init__(self, sampler: Any, epoch: int) -> None:
        self._sampler = sampler
        # A training that goes on from a checkpoint does not begin with its first order again.
        sampler.set_epoch(epoch)

    def __iter__(self) -> Iterator[int]:
        samples: Iterator[int] = iter(self._sampler)
        self._sampler.set_epoch(self._sampler.epoch + 1)
        return samples

    def __len__(self) -> int:
        size: int = len(self._sampler)
        return size

    def set_epoch(self, epoch: int) -> None:
        """Chooses the order of the next pass, as loops do that are written for a `DistributedSampler`."""
        self._sampler.set_epoch(epoch)
