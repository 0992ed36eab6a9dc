"""CONTRIBUTING.md names files, functions and tests that exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")


def names_in(path: str) -> set[str]:
    """The functions and classes of a file."""
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    return {node.name for node in ast.walk(ast.parse((ROOT / path).read_text())) if isinstance(node, kinds)}


def test_answers_name_functions_that_exist() -> None:
    """Each answer to "Where is X?" is a file and what it defines."""
    section = TEXT.partition("## Where is X?")[2].partition("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("| Where")]
    assert rows
    for row in rows:
        answers = re.findall(r"`([\w/]+\.py)`: `(\w+)`", row)
        assert answers, row
        for path, name in answers:
            assert name in names_in(path), (path, name)


def test_commands_name_tests_that_exist() -> None:
    """The commands of the first lines name a test, a file and a scenario."""
    commands = re.findall(r'pytest "?(tests/[\w/.]+)(?:::(\w+))?(?:\[([^\]]+))?', TEXT)
    assert commands
    tables = (yaml.safe_load(table.read_text()) for table in (ROOT / "tests/scenarios").glob("*.yaml"))
    scenarios = {one["name"] for table in tables for one in table}
    for path, test, scenario in commands:
        assert {test} - {""} <= names_in(path)
        assert {scenario} - {""} <= scenarios


def test_paths_exist() -> None:
    """Every path in the text is in the tree, relative to its root, a package or the protos."""
    roots = [
        ROOT,
        *(ROOT / name for name in ("server/wattwise_server", "client/python/wattwise", "protos/wattwise/v1")),
    ]
    paths = re.findall(r"`((?:[\w-]+/)*[\w-]+(?:/|\.(?:py|proto|md|yaml|toml)))[`:]", TEXT)
    paths += re.findall(r"\]\(([^)#]+)", TEXT)
    assert paths
    assert [path for path in paths if not any((root / path).exists() for root in roots)] == []


def test_targets_exist() -> None:
    """Every `make` target in the text is one of the Makefile's."""
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert {target for target in re.findall(r"`make ([a-z-]+)", TEXT) if target not in targets} == set()
