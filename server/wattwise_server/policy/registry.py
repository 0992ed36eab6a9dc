"""The policies by name: every module of this package with a `POLICY` registers it under the module's name.

`gts.py` is "gts", which is the field `gts` of PolicySpec on the wire.
"""

from __future__ import annotations

import pkgutil
from importlib import import_module
from pathlib import Path
from types import ModuleType

from wattwise_server.policy.base import Policy

POLICIES: dict[str, Policy] = {}
"""Filled below: `stopping` and `search`, which are among the modules, use it."""


def _policies() -> dict[str, Policy]:  # pragma: no mutate block, runs at import
    files = [file.name for file in pkgutil.iter_modules([str(Path(__file__).parent)]) if file.name != "registry"]
    modules = {name: _module(name) for name in files}
    return {name: module.POLICY for name, module in modules.items() if hasattr(module, "POLICY")}


def _module(name: str) -> ModuleType:  # pragma: no mutate block, runs at import
    try:
        return import_module(f"wattwise_server.policy.{name}")
    except Exception as error:
        raise ImportError(
            f"the policy in policy/{name}.py cannot be loaded: {type(error).__name__}: {error}"
        ) from error


POLICIES.update(_policies())
