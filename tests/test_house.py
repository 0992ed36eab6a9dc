"""The script behind `make figures` counts what it says."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests import house

TOP = '''"""Top.

Two lines more.
"""

from typing import TYPE_CHECKING

from wattwise.low import room

if TYPE_CHECKING:
    from wattwise.low.inner import Inner


# A comment.
def public() -> int:
    """One."""
    return _once()  # beside code


def _once() -> int:
    a = 1
    b = 2
    c = 3
    return a + b + c
'''


def test_figures_of_a_small_tree(tmp_path: Path) -> None:
    """Lines, functions, the longest chain and circles with and without imports for types."""
    package = tmp_path / "client/python/wattwise"
    (package / "low").mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "top.py").write_text(TOP)
    (package / "low/__init__.py").touch()
    (package / "low/room.py").write_text("import wattwise.floor\n")
    (package / "low/inner.py").write_text("from .. import top\n")
    (package / "floor.py").touch()
    modules = house.modules_of(package.parent, "wattwise")
    top = modules["wattwise.top"]
    assert (top.code, top.documentation) == (11, 6)
    assert (len(top.functions), top.short_functions) == (2, 1)
    assert (len(top.private_functions), top.private_functions_used_once) == (1, 1)
    running = {name: module.imports(modules) for name, module in modules.items()}
    assert running["wattwise.low.inner"] == {"wattwise.top"}
    assert house.circles(running) == []
    typed = {name: module.imports(modules, for_types=True) for name, module in modules.items()}
    assert house.circles(typed) == [["wattwise.low.inner", "wattwise.top"]]
    rooms = house.rooms("wattwise", running)
    assert house.circles(rooms) == [["low", "top"]]
    assert house.longest_chain(rooms) == ["low", "top", "floor"]
    done = subprocess.run([sys.executable, "-S", house.__file__, tmp_path], capture_output=True, text=True, check=True)
    rows = {line[:52].strip(): line[52:].split() for line in done.stdout.splitlines()}
    assert rows["modules"] == ["0", "6", "0", "0", "0", "6"]
    assert rows["import circles of rooms"] == ["0", "1", "0", "0"]
