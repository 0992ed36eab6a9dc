"""GPU power limits: which one trains a batch size most cheaply, found out once and used ever after."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from wattwise.power.computed import Computed
    from wattwise.power.optimizer import PowerLimitOptimizer

__all__ = ["Computed", "PowerLimitOptimizer"]

_MODULES = {"Computed": "computed", "PowerLimitOptimizer": "optimizer"}

if not TYPE_CHECKING:
    # Hidden from type checkers, to which every misspelt name would look like one of ours.

    def __getattr__(name: str) -> object:
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
