"""Plays cases with several contenders on all processors."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from functools import lru_cache
from importlib import import_module
from itertools import starmap
from multiprocessing import get_context
from typing import Any, NamedTuple

from wattwise_replay.errors import ReplayError
from wattwise_server.policy import registry

from benchmarks.decisions.cases import Case, Folders
from benchmarks.decisions.scores import Contender, Played, Reference, Score, joined, played, reference

_SEEDS_AT_ONCE = 5
_ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")


class Setup(NamedTuple):
    """The folders, the policies and the place of the variants, which every process needs."""

    folders: Folders
    policies: tuple[str, ...]
    variants: str | None = None


class _Task(NamedTuple):
    case: Case
    contender: str | None
    """None for the reference."""
    seeds: range


@lru_cache(maxsize=1)
def contenders(setup: Setup) -> Mapping[str, Contender]:
    """Returns the policies and the variants, by name.

    Raises:
        ReplayError: the variants cannot be loaded.
    """
    found = {
        name: Contender(name, lambda name=name: registry.POLICIES[name])  # type: ignore[misc]
        for name in setup.policies
    }
    if setup.variants is not None:
        module, _, attribute = setup.variants.partition(":")
        try:
            variants = getattr(import_module(module), attribute)
        except (ImportError, AttributeError, ValueError) as error:
            raise ReplayError(
                f"cannot load --variants {setup.variants}: {error}; use MODULE:NAME of a mapping"
            ) from error
        found.update({name: Contender(name, make) for name, make in variants.items()})
    return found


def play_all(
    setup: Setup, seeds: Mapping[Case, int], names: Sequence[str], processes: int
) -> Mapping[str, Mapping[Case, Score]]:
    """Returns the scores of all contenders.

    Args:
        setup: What every process needs.
        seeds: The number of seeds of each case.
        names: The contenders.
        processes: The number of processes.

    Raises:
        ReplayError: a workload cannot be loaded, or a policy fails.
    """
    # Those that share a workload side by side, since each process keeps the last few.
    order = sorted(seeds, key=lambda case: (-(case.recurrences or 0), case.workload))
    tasks = [_Task(case, name, part) for case in order for name in names for part in _parts(seeds[case])]
    tasks += [_Task(case, None, range(seeds[case])) for case in order]
    with _mapped(processes) as mapped:
        done = mapped(_done, [(setup, task) for task in tasks])
        found = dict(zip(tasks, _counted(done, len(tasks)), strict=True))
    return {
        name: {
            case: Score(
                joined([found[_Task(case, name, part)] for part in _parts(number)]),
                found[_Task(case, None, range(number))],
            )
            for case, number in seeds.items()
        }
        for name in names
    }


def _parts(seeds: int) -> Sequence[range]:
    return [range(start, min(start + _SEEDS_AT_ONCE, seeds)) for start in range(0, seeds, _SEEDS_AT_ONCE)]


def _counted(done: Iterable[Any], number: int) -> Iterator[Any]:
    """Yields what is done, and shows its number on a terminal."""
    for count, each in enumerate(done, 1):
        if sys.stderr.isatty():
            print(f"\rplayed {count:,} of {number:,} groups of seeds", end="", file=sys.stderr)
        yield each
    if sys.stderr.isatty():
        print(file=sys.stderr)


@contextmanager
def _mapped(processes: int) -> Iterator[Callable[..., Any]]:
    """Yields a function that calls another one with many tuples of arguments; here, if one process is enough."""
    if processes == 1:
        yield starmap
        return
    # New processes import NumPy themselves, after these are set: several threads of each would only wait.
    os.environ.update(dict.fromkeys(_ONE_THREAD, "1"))
    with ProcessPoolExecutor(processes, get_context("spawn")) as pool:
        yield lambda call, arguments: pool.map(call, *zip(*arguments, strict=True))


def _done(setup: Setup, task: _Task) -> Played | Reference:
    workload = task.case.load(setup.folders)
    if task.contender is None:
        return reference(task.case, workload, task.seeds)
    contender = contenders(setup)[task.contender]
    return played(task.case, workload, contender, task.seeds, task.case.load_prior(setup.folders))
