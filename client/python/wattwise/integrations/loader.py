"""PyTorch's DataLoader with the batch size that the server chose."""

from __future__ import annotations

import importlib
import itertools
import sys
from collections.abc import Iterator
from numbers import Integral
from typing import TYPE_CHECKING, Any

from wattwise.errors import InvalidArgumentError, TrainerSetupError

if TYPE_CHECKING:
    from wattwise.training.optimizer import BatchSizeOptimizer


def data_loader(
    bso: BatchSizeOptimizer,
    dataset: Any,
    *,
    shuffle: bool | None = None,
    drop_last: bool = False,
    max_per_device: int | None = None,
    **options: Any,
) -> Any:
    """Creates a `torch.utils.data.DataLoader` whose batches add up to the global batch size over all ranks.

        loader = data_loader(bso, dataset, shuffle=True, num_workers=4)

    With several ranks, a `DistributedSampler` gives each rank its part of the dataset, in a new order in every pass; do
    not call `set_epoch`. An `IterableDataset` has no sampler: it must give each rank its part itself. Asks for the
    batch size if that has not been done.

    With `max_per_device` a batch may be a part of the rank's share. Divide the loss by `loader.accumulation_steps`, and
    update the weights after as many batches and at the end of a pass; docs/trainers.md has the loop.

    Args:
        bso: the optimizer of the trial.
        dataset: a PyTorch dataset.
        shuffle: whether each pass has a new order.
        drop_last: whether to drop the last examples of a pass if they are fewer than the rank's share of the batch
            size. With several ranks, also drops the remainder when the dataset is split; otherwise some samples are
            repeated. Of an `IterableDataset` only an incomplete batch of the loader is dropped.
        max_per_device: the largest number of examples that the rank's device can train in one step. The loader's
            batches are the largest up to this number that divide the rank's share. None is the whole share.
        options: all other arguments of `DataLoader`; a `sampler` must give each rank its part itself.

    Returns:
        The loader. Its attribute `accumulation_steps` is the number of batches for one update of the weights: 1 without
        `max_per_device`.

    Raises:
        TrainerSetupError: if the number of ranks does not divide the batch size; names the sizes that it divides. Also
            if there is no batch to train, `max_per_device` is not a positive integer, or accelerate would split the
            data a second time.
        InvalidArgumentError: if the options contain a batch size.
        ModuleNotFoundError: if PyTorch is not installed.
        WattwiseError: as documented at `get_batch_size`.
    """
    for name in ("batch_size", "batch_sampler"):
        if name in options:
            raise InvalidArgumentError(f"data_loader() got {name}, but the server chooses the batch size: omit it")
    try:
        # Any for type checkers, because PyTorch is optional.
        torch_data: Any = importlib.import_module("torch.utils.data")
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(f"data_loader() needs PyTorch: pip install torch ({error})") from None
    bso.get_batch_size()
    trial, iterable = bso.trial, isinstance(dataset, torch_data.IterableDataset)
    share = trial.per_rank_batch_size
    limit = share if max_per_device is None else max_per_device
    size, steps = trial.global_batch.accumulated(trial.world_size, limit, "ranks")
    if trial.world_size > 1 and options.get("sampler") is None and not iterable:
        if _accelerate_splits():
            raise TrainerSetupError(
                "accelerate's prepare() splits the data over the ranks, and would split this loader a second time: "
                "pass it DataLoader(dataset, batch_size=bso.trial.per_rank_batch_size) instead. For a loader that is "
                "not passed to prepare(), give data_loader() a sampler, such as DistributedSampler(dataset)"
            )
        parts = {"num_replicas": trial.world_size, "rank": trial.rank, "shuffle": bool(shuffle), "drop_last": drop_last}
        options["sampler"] = _Shard(torch_data.DistributedSampler(dataset, **parts), bso.last_epoch)
        shuffle = None
    loader = torch_data.DataLoader(dataset, batch_size=size, shuffle=shuffle, drop_last=drop_last, **options)
    examples = length_of(dataset if iterable else loader.sampler)
    if examples == 0:
        raise TrainerSetupError("the dataset has no example for this rank: there is no batch to train")
    if drop_last and examples is not None and examples < share:
        raise TrainerSetupError(
            f"drop_last=True leaves no batch to train: this rank has {examples} examples, and its share of the batch "
            f"size {trial.batch_size} is {share}; pass drop_last=False, or register a job whose batch_sizes are at "
            f"most {examples * trial.world_size}"
        )
    if drop_last and steps > 1 and not iterable:
        options["sampler"] = _Whole(loader.sampler, share)
        loader = torch_data.DataLoader(dataset, batch_size=size, drop_last=True, **options)
    loader.accumulation_steps = steps
    return loader


def _accelerate_splits() -> bool:
    """Returns whether accelerate's `prepare` splits data over several processes."""
    state = getattr(sys.modules.get("accelerate.state"), "PartialState", None)
    # Creating a state to ask would initialise it.
    return bool(getattr(state, "_shared_state", {}).get("num_processes", 1) > 1)


def length_of(sized: Any) -> int | None:
    """Returns the length of a dataset, a sampler or a loader; None if it has none."""
    try:
        return len(sized)
    except (TypeError, NotImplementedError):
        return None


def batch_size_of(loader: Any) -> int | None:
    """Returns the batch size that a loader states, or its batch sampler; None if neither does."""
    for each in (loader, getattr(loader, "batch_sampler", None)):
        size = getattr(each, "batch_size", None)
        if isinstance(size, Integral):
            return int(size)
    return None


class _Whole:
    """The samples of another sampler that fill whole batches of the rank's share."""

    def __init__(self, sampler: Any, share: int) -> None:
        self._sampler = sampler
        self._share = share

    def __iter__(self) -> Iterator[int]:
        samples = iter(self._sampler)
        while len(batch := list(itertools.islice(samples, self._share))) == self._share:
            yield from batch

    def __len__(self) -> int:
        return len(self._sampler) // self._share * self._share

    def set_epoch(self, epoch: int) -> None:
        """Sets the order of the next pass."""
        self._sampler.set_epoch(epoch)


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
