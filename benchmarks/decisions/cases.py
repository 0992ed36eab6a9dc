"""The jobs of the table of decisions: a workload, and everything about the job that is not usual."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from wattwise_replay import traces, workload_file
from wattwise_replay.errors import ReplayError
from wattwise_replay.named_worlds import named_world
from wattwise_replay.synthetic import synthetic
from wattwise_replay.traces import TraceOptions
from wattwise_replay.workload import Workload

from benchmarks.decisions.worlds import WORLDS

TRACED: Mapping[str, TraceOptions] = {
    **traces.WORKLOADS,
    "movielens-1m": TraceOptions("ncf", "adam", 0.41, True, 100, 1024),
    "sentiment140": TraceOptions("bert_base_uncased", "adamw", 0.84, True, 10, 128),
}
"""The workloads of the published traces. `wattwise replay` knows those that docs/results.md has results of."""

_FILE = ".toml"
_DEMO = "demo"
RECORDED = Path(__file__).parent / _DEMO / "demo.toml"
"""The recorded runs of the demo's job, which `record_demo` writes."""


class Folders(NamedTuple):
    """Folders of measurements; None where there are none.

    Attributes:
        traces: The traces of GPUs.
        workloads: Workload files, one level below it.
    """

    traces: Path | None = None
    workloads: Path | None = None


NOWHERE = Folders()
"""No folder, which is enough for synthetic worlds."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options that name the folders, and the number of processes."""
    parser.add_argument("--traces", type=Path, metavar="DIR", help="folder of the traces; without it, no measured rows")
    parser.add_argument(
        "--workloads",
        type=Path,
        metavar="DIR",
        help="folder of recorded workloads, every DIR/*/*.toml (default: the folder cpu of the traces, if it exists)",
    )
    parser.add_argument(
        "--processes", type=int, default=os.cpu_count() or 1, metavar="N", help="default: one for each processor"
    )


def folders_of(args: argparse.Namespace) -> Folders:
    """Returns the folders that these options name."""
    return Folders(args.traces, args.workloads or beside(args.traces))


@dataclass(frozen=True)
class Case:
    """A job to play.

    Attributes:
        workload: The name of a synthetic workload, a seed, `workload/gpu` of the traces, a workload file below the
            folder of workloads, or "demo".
        target: Another target than the workload's; only for traces.
        recurrences: Their number; None for the workload's horizon.
        window: The job's window.
        eta: Weight of energy against time.
        beta: Factor of early stopping; None for none.
        overlap: Share of recurrences that overlap with the one before.
        at_once: Number of recurrences of which each is submitted before any of them ends.
        mirrored_at: The recurrence from which the measurements are reversed over the batch sizes; None for never.
        prior: The GPU on which the same workload was trained before, or "mirrored" for the same workload with its
            measurements reversed over the batch sizes; None for none.
        baseline_every: A baseline is run after the first of so many recurrences; None for never.
    """

    workload: str
    target: float | None = None
    recurrences: int | None = None
    window: int = 0
    eta: float = 0.5
    beta: float | None = 2.0
    overlap: float = 0.0
    at_once: int = 1
    mirrored_at: int | None = None
    prior: str | None = None
    baseline_every: int | None = None

    @property
    def name(self) -> str:
        """The workload and everything that is not usual."""
        usual = Case(self.workload)
        names = [field.name for field in fields(self)]
        changed = [
            f"{name.replace('_', ' ')} {getattr(self, name)}"
            for name in names
            if getattr(self, name) != getattr(usual, name)
        ]
        return ", ".join((f"seed {self.workload}" if self.workload.isdecimal() else self.workload, *changed))

    @property
    def needs(self) -> str | None:
        """The folder that it needs, as an attribute of `Folders`; None if it is synthetic."""
        if self.workload.endswith(_FILE):
            return "workloads"
        return "traces" if "/" in self.workload else None

    def load(self, folders: Folders = NOWHERE) -> Workload:
        """Returns its workload.

        Raises:
            ReplayError: there is no such workload, or its folder is missing.
        """
        return loaded(folders, self.workload, self.target, self.mirrored_at)

    def load_prior(self, folders: Folders = NOWHERE) -> Workload | None:
        """Returns the workload that was trained before.

        Raises:
            ReplayError: there is no such workload, or its folder is missing.
        """
        if self.prior is None:
            return None
        if self.prior == "mirrored":
            return self.load(folders).mirrored()
        name, _ = self.workload.split("/")
        return loaded(folders, f"{name}/{self.prior}", self.target, None)


@lru_cache(maxsize=32)
def loaded(folders: Folders, name: str, target: float | None, mirrored_at: int | None) -> Workload:
    """Returns the workload of a name. Cached, because many cases share it."""
    workload = _loaded(folders, name, target)
    return workload if mirrored_at is None else workload.drifting(mirrored_at)


def _loaded(folders: Folders, name: str, target: float | None) -> Workload:
    if name == _DEMO:
        return workload_file.load(RECORDED)
    if name.endswith(_FILE):
        return workload_file.load(_needed(folders.workloads, name) / name)
    if "/" in name:
        workload, gpu = name.split("/")
        return traces.load(_needed(folders.traces, name), workload, gpu, target, TRACED)
    if name in WORLDS:
        return WORLDS[name]()
    return synthetic(int(name)) if name.isdecimal() else named_world(name)


def _needed(folder: Path | None, name: str) -> Path:
    if folder is None:
        raise ReplayError(f"the folder of {name} is missing; pass --traces or --workloads")
    return folder


def measured_settings(folder: Path) -> Sequence[str]:
    """Returns the workloads and GPUs that can be played from a folder of traces, as `workload/gpu`."""
    found = []
    for workload in TRACED:
        for gpu in traces.gpus(folder):
            try:
                loaded(Folders(folder), f"{workload}/{gpu}", None, None)
            except ReplayError:
                continue
            found.append(f"{workload}/{gpu}")
    return found


def workload_files(folder: Path) -> Sequence[str]:
    """Returns the workload files one level below a folder, relative to it."""
    return sorted(str(path.relative_to(folder)) for path in folder.glob(f"*/*{_FILE}"))


def beside(folder: Path | None) -> Path | None:
    """Returns the folder of recorded workloads in that of the traces."""
    return folder / "cpu" if folder is not None and (folder / "cpu").is_dir() else None
