"""Cumulative regret over recurrences, as a picture."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from wattwise_replay.compare import AT_BEST_LIMIT, DEFAULT, GRID, HINDSIGHT, Comparison
from wattwise_replay.errors import ReplayError
from wattwise_replay.files import check_writable
from wattwise_replay.statistics import quantile

_LEGEND_COLUMNS = {1: 1, 2: 2, 3: 3, 4: 5}
"""How many names fit beside each other below so many panels."""

_NEEDED = '--plot needs matplotlib: pip install "wattwise[replay]"'

# Okabe and Ito's, which all eyes can tell apart.
_COLOURS = {
    DEFAULT: "#999999",
    AT_BEST_LIMIT: "#56B4E9",
    GRID: "#E69F00",
    "POLICY_PRUNING_GTS": "#D55E00",
    "POLICY_GTS": "#0072B2",
}


def check_plot(path: Path) -> None:
    """Whether a picture can be drawn there, for whoever would rather know before the work.

    Raises:
        ReplayError: matplotlib is not installed or knows no such format, or the file cannot be written.
    """
    try:
        from matplotlib.backend_bases import FigureCanvasBase  # noqa: PLC0415 - only who draws needs it
    except ImportError:
        raise ReplayError(_NEEDED) from None
    known = FigureCanvasBase.get_supported_filetypes()
    if path.suffix.removeprefix(".").lower() not in known:
        raise ReplayError(f"cannot draw {path}: its ending says in which format, such as .svg, .png or .pdf")
    check_writable(path)


def draw(comparisons: Sequence[Comparison], path: Path) -> None:
    """Draws one panel for each setting.

    Args:
        comparisons: The settings.
        path: Where; its ending says in which format: .svg, .png, .pdf.

    Raises:
        ReplayError: matplotlib is not installed, knows no such format, or the file cannot be written.
    """
    try:
        from matplotlib import rc_context  # noqa: PLC0415 - only who draws needs it
        from matplotlib.figure import Figure  # noqa: PLC0415
    except ImportError:
        raise ReplayError(_NEEDED) from None
    columns = min(4, len(comparisons))
    rows = math.ceil(len(comparisons) / columns)
    figure = Figure(figsize=(4.2 * columns, 3.4 * rows), layout="constrained")
    panels = np.atleast_1d(figure.subplots(rows, columns, squeeze=False)).ravel()
    for panel, comparison in zip(panels, comparisons, strict=False):
        _panel(panel, comparison)
    for empty in panels[len(comparisons) :]:
        empty.set_visible(False)
    figure.legend(
        *panels[0].get_legend_handles_labels(),
        loc="outside lower center",
        ncols=_LEGEND_COLUMNS[columns],
        frameon=False,
    )
    try:
        # Text that stays text, and the same file for the same numbers.
        with rc_context({"svg.fonttype": "none", "svg.hashsalt": "wattwise"}):
            figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
    except (OSError, ValueError) as error:
        raise ReplayError(f"cannot draw {path}: {error}") from error


def _panel(panel: Any, comparison: Comparison) -> None:
    for name in comparison.ledgers:
        if name == HINDSIGHT:
            continue
        regret = comparison.regret(name) / 1e6
        seeds, recurrences = regret.shape
        places, mean = np.arange(1, recurrences + 1), regret.mean(axis=0)
        # Where the highest limit is the best one, the line below shows through.
        style = "--" if name == AT_BEST_LIMIT else "-"
        panel.plot(places, mean, label=name, color=_COLOURS.get(name), linewidth=1.6, linestyle=style)
        if seeds > 1:
            half = regret.std(axis=0, ddof=1) / math.sqrt(seeds) * quantile(seeds - 1)
            panel.fill_between(places, mean - half, mean + half, color=_COLOURS.get(name), alpha=0.2, linewidth=0)
    if comparison.world.drift_at is not None:
        panel.axvline(comparison.world.drift_at + 0.5, color="black", linewidth=0.8, linestyle=":")
    panel.set_title(comparison.world.workload.setting)
    panel.set_xlabel("recurrence")
    panel.set_ylabel("cumulative regret, MJ")
    panel.spines[["top", "right"]].set_visible(False)
