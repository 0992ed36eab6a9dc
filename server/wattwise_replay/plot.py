"""Plots cumulative regret over recurrences; how every plot is made and saved."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from wattwise_server.cost import unit_of

from wattwise_replay.compare import AT_BEST_LIMIT, DEFAULT, GRID, HINDSIGHT, Comparison
from wattwise_replay.errors import ReplayError
from wattwise_replay.statistics import quantile

_LEGEND_COLUMNS = {1: 1, 2: 2, 3: 3, 4: 5}
"""Columns of the legend by columns of panels."""

_NEEDED = "plots need matplotlib; run `make setup`, or `pip install '.[replay]'`, in a checkout"

# Okabe and Ito's palette, which is safe for colour blindness.
_COLOURS = {
    DEFAULT: "#999999",
    AT_BEST_LIMIT: "#56B4E9",
    GRID: "#E69F00",
    "pruning_gts": "#D55E00",
    "gts": "#0072B2",
    "knowledge_gradient": "#009E73",
}


def check_plot(path: Path) -> None:
    """Checks, before the replay starts, that a plot can be drawn.

    Raises:
        ReplayError: matplotlib is missing or does not know the format.
    """
    try:
        from matplotlib.backend_bases import FigureCanvasBase  # noqa: PLC0415 - only plots need it
    except ImportError:
        raise ReplayError(_NEEDED) from None
    known = FigureCanvasBase.get_supported_filetypes()
    if path.suffix.removeprefix(".").lower() not in known:
        raise ReplayError(f"cannot write {path}: use an extension such as .svg, .png or .pdf")


def draw(comparisons: Sequence[Comparison], path: Path) -> None:
    """Draws one panel per workload.

    Args:
        comparisons: The workloads.
        path: The file; its extension selects the format: .svg, .png, .pdf.

    Raises:
        ReplayError: matplotlib is missing or does not know the format, or the file cannot be written.
    """
    columns = min(4, len(comparisons))
    rows = math.ceil(len(comparisons) / columns)
    figure = new_figure(4.2 * columns, 3.4 * rows)
    panels = np.atleast_1d(figure.subplots(rows, columns, squeeze=False)).ravel()
    # One unit, so that panels can be compared.
    unit = unit_of(min(_largest(comparison) for comparison in comparisons))
    for panel, comparison in zip(panels, comparisons, strict=False):
        _panel(panel, comparison, unit)
    for empty in panels[len(comparisons) :]:
        empty.set_visible(False)
    figure.legend(
        *panels[0].get_legend_handles_labels(),
        loc="outside lower center",
        ncols=_LEGEND_COLUMNS[columns],
        frameon=False,
    )
    save(figure, path)


def new_figure(width: float, height: float) -> Any:
    """Returns an empty figure of this size in inches.

    Raises:
        ReplayError: matplotlib is missing.
    """
    try:
        from matplotlib.figure import Figure  # noqa: PLC0415 - only plots need it
    except ImportError:
        raise ReplayError(_NEEDED) from None
    return Figure(figsize=(width, height), layout="constrained")


def save(figure: Any, path: Path) -> None:
    """Writes a figure; the same file for the same numbers.

    Raises:
        ReplayError: the format is unknown, or the file cannot be written.
    """
    from matplotlib import rc_context  # noqa: PLC0415 - only plots need it

    try:
        # Keeps text as text, and the ids of elements the same.
        with rc_context({"svg.fonttype": "none", "svg.hashsalt": "wattwise"}):
            figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
    except (OSError, ValueError) as error:
        raise ReplayError(f"cannot write {path}: {error}") from error


def _largest(comparison: Comparison) -> float:
    """Returns the largest mean regret, in joules."""
    return max(float(np.abs(comparison.regret(name).mean(axis=0)).max()) for name in comparison.ledgers)


def _panel(panel: Any, comparison: Comparison, unit: tuple[str, float]) -> None:
    for name in comparison.ledgers:
        if name == HINDSIGHT:
            continue
        regret = comparison.regret(name) / unit[1]
        seeds, recurrences = regret.shape
        places, mean = np.arange(1, recurrences + 1), regret.mean(axis=0)
        # Dashed, so that an identical line below stays visible.
        style = "--" if name == AT_BEST_LIMIT else "-"
        panel.plot(places, mean, label=name, color=_COLOURS.get(name), linewidth=1.6, linestyle=style)
        if seeds > 1:
            half = regret.std(axis=0, ddof=1) / math.sqrt(seeds) * quantile(seeds - 1)
            panel.fill_between(places, mean - half, mean + half, color=_COLOURS.get(name), alpha=0.2, linewidth=0)
    for change in comparison.world.workload.changes:
        panel.axvline(change.at + 0.5, color="black", linewidth=0.8, linestyle=":")
    panel.set_title(comparison.world.workload.setting)
    panel.set_xlabel("recurrence")
    panel.set_ylabel(f"cumulative regret, {unit[0]}")
    panel.spines[["top", "right"]].set_visible(False)
