"""A workload file: your own recorded runs as the trace of a replay."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from wattwise.driver.toml_table import POSITIVE, Condition, Table, at_least, parsed
from wattwise.errors import Violation
from wattwise.files import FileError, resolved

from wattwise_replay import traces
from wattwise_replay.errors import ReplayError
from wattwise_replay.traces import COLUMNS, Source
from wattwise_replay.workload import Workload

_FINITE: Condition = ("a finite number", math.isfinite)


@dataclass(frozen=True)
class WorkloadSection:
    """The table [workload].

    Attributes:
        name: The workload's name in tables.
        runs: The CSV file of recorded runs, beside the workload file.
        power: The CSV file of measured power, beside the workload file.
        target_metric: The metric to reach.
        default_batch_size: The batch size before anything was learned.
        max_epochs: Epochs after which a trial is over.
        higher_is_better: Whether a higher metric is better.
        max_power_watts: The GPU's highest power limit; None for the highest in the file of power.
        gpu: The GPU's name in tables.
        filter: The values that a line must have, by column; applies to each file with such a column.
    """

    name: str
    runs: Path
    power: Path
    target_metric: float
    default_batch_size: int
    max_epochs: int
    higher_is_better: bool = True
    max_power_watts: float | None = None
    gpu: str = "gpu"
    filter: Mapping[str, str | float] = field(default_factory=dict)


def load(path: Path) -> Workload:
    """Returns the workload of a file.

    Raises:
        ReplayError: with every fault of the file; or one of its CSV files is invalid.
    """
    faults: list[Violation] = []
    root = Table("", parsed(path, ReplayError), faults)
    root.check_keys(("workload", "columns"))
    section = root.table("workload")
    filters, columns = section.table("filter", required=False), root.table("columns", required=False)
    values = section.read(
        WorkloadSection,
        target_metric=_FINITE,
        default_batch_size=at_least(1),
        max_epochs=at_least(1),
        max_power_watts=POSITIVE,
    )
    values.update(filter=_filter(filters))
    names = _columns(columns)
    for key in ("runs", "power"):
        if key in values:
            values[key] = path.parent / values[key]
            try:
                found = resolved(values[key]).is_file()
            except FileError as error:
                section.fault(key, str(error))
                continue
            if not found:
                section.fault(key, f"{values[key]} is not a file; it is relative to the workload file")
    if faults:
        raise ReplayError(f"{path}: " + "; ".join(f"{fault.field}: {fault.description}" for fault in faults))
    remedy = f"change it, or map the column in [columns] of {path}"
    options = {"gpu": WorkloadSection.gpu, "higher_is_better": WorkloadSection.higher_is_better, **values}
    try:
        return traces.read(Source(**options, columns=names, remedy=remedy))
    except ReplayError as error:
        raise ReplayError(f"{path}: {error}") from error


def _filter(table: Table) -> dict[str, str | float]:
    kept: dict[str, str | float] = {}
    for column, value in table.values.items():
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            table.fault(column, f"is {value!r}; use a string or a number, the value that the lines have")
        else:
            kept[column] = value
    return kept


def _columns(table: Table) -> dict[str, str]:
    table.check_keys(COLUMNS)
    kept: dict[str, str] = {}
    for name, value in table.values.items():
        if not isinstance(value, str) or not value:
            table.fault(name, f"is {value!r}; use the name of the column in your files")
        else:
            kept[name] = value
    return kept
