"""The policies by name: every module of this package with a `POLICY` registers it under the module's name.

`gts.py` is "gts", which is the field `gts` of PolicySpec on the wire.
"""

from __future__ import annotations

import pkgutil
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

from wattwise_server.policy.base import Policy


def _policies() -> dict[str, Policy]:  # pragma: no mutate block, runs at import
    names = [file.name for file in pkgutil.iter_modules([str(Path(__file__).parent)]) if file.name != "registry"]
    return {name: _policy(name) for name in names if _has_policy(name)}


def _has_policy(name: str) -> bool:  # pragma: no mutate block, runs at import
    """Reads the source: to import other modules of the package, which may use the registry, would be a circle."""
    spec = find_spec(f"wattwise_server.policy.{name}")
    return spec is not None and spec.origin is not None and "POLICY" in Path(spec.origin).read_text(encoding="utf-8")


def _policy(name: str) -> Policy:  # pragma: no mutate block, runs at import
    try:
        policy: Policy = import_module(f"wattwise_server.policy.{name}").POLICY
    except Exception as error:
        raise ImportError(
            f"the policy in policy/{name}.py cannot be loaded: {type(error).__name__}: {error}"
        ) from error
    return policy


POLICIES = _policies()
