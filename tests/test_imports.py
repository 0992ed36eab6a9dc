"""The import rules of pyproject.toml are complete."""

from __future__ import annotations

import pkgutil
import sys
from pathlib import Path
from typing import Any

import wattwise

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_ROOT = Path(__file__).parents[1]
_RULE = "Server: of the client it takes the stubs, the rules and the modules below its errors"


def test_server_is_kept_from_all_of_the_client() -> None:
    """Every module of the client's package is forbidden to the server, but for a few; so are replay and page."""
    project: dict[str, Any] = tomllib.loads((_ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    rules = project["tool"]["importlinter"]["contracts"]
    (forbidden,) = (set(rule["forbidden_modules"]) for rule in rules if rule["name"] == _RULE)
    modules = {module.name for module in pkgutil.iter_modules(wattwise.__path__, "wattwise.")}
    shared = {f"wattwise.{name}" for name in ("v1", "drafts", "files", "rules", "streams", "variables")}
    assert forbidden == modules - shared | {"wattwise_replay", "wattwise_web"}
