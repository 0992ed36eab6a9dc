"""Which policy stands behind which name: that of the file of this folder that has one as its `POLICY`.

`gts.py` is "GTS", which the wire calls POLICY_GTS.
"""

from __future__ import annotations

import pkgutil
from importlib import import_module
from pathlib import Path

from wattwise_server.policy.base import Policy


def _policies() -> dict[str, Policy]:
    files = (file.name for file in pkgutil.iter_modules([str(Path(__file__).parent)]))
    modules = {name: import_module(f"wattwise_server.policy.{name}") for name in files if name != "registry"}
    return {name.upper(): module.POLICY for name, module in modules.items() if hasattr(module, "POLICY")}


POLICIES = _policies()
