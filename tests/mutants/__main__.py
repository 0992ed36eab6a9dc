"""Breaks the server in thousands of small ways, runs the tests that call what is broken, and prints the score.

mutmut writes the mutants into a copy under build/mutants, and mypy refuses many of them. The others run in forks of a
pytest that has collected all tests: see plugin.py.

python -m tests.mutants [PATTERN...]
"""

from __future__ import annotations

import argparse
import ast
import bisect
import fnmatch
import itertools
import json
import os
import shutil
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import libcst as cst
from mutmut import __main__ as mutmut
from mutmut.configuration import config
from mutmut.mutation import file_mutation, mutators
from mutmut.mutation.data import SourceFileMutationData
from mutmut.utils.file_utils import copy_also_copy_files, copy_src_dir, walk_mutatable_files
from mutmut.utils.format_utils import get_mutant_name

ROOT = Path(__file__).parents[2]
STAGE = ROOT / "build/mutants"
COPY = STAGE / "mutants"
STAGED = {
    "wattwise": "client/python/wattwise",
    "wattwise_server": "server/wattwise_server",
    "wattwise_replay": "server/wattwise_replay",
    **{name: name for name in ("docs", "pyproject.toml", "tests")},
}
NOTICED, SURVIVED, UNTESTED, REFUSED, TIMED_OUT = 1, 0, 33, 37, 36
"""Exit statuses in mutmut's files."""

KINDS = {
    NOTICED: "killed",
    REFUSED: "mypy",
    TIMED_OUT: "timeout",
    SURVIVED: "survived",
    UNTESTED: "no test",
    None: "not run",
}

LEAST_SCORE = 95.0

_ASSERTIONS: dict[int, Any] = {}
"""Nodes that say what the code takes for granted."""

_FIRST_SECONDS, _LAST_SECONDS = 2.5, 40.0
"""The tests of one mutant: some functions are called by hundreds, which few mutants survive."""


def main() -> int:
    """Returns 1 if the score is too low."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description="run mutation tests")
    parser.add_argument("patterns", nargs="*", help="names of mutants with wildcards, 'survivors', or 'rest'")
    patterns = parser.parse_args().patterns
    if not patterns and COPY.exists():
        shutil.rmtree(COPY)
    _stage()
    _write_mutants()
    files = [SourceFileMutationData(path=path) for path in walk_mutatable_files()]
    refused = _refused_by_types()
    todo = []
    for file in files:
        file.load()
        for name, status in file.exit_code_by_key.items():
            if name in refused:
                file.exit_code_by_key[name] = REFUSED
            elif not patterns or _chosen(name, status, patterns):
                file.exit_code_by_key[name] = None
                todo.append(name)
        file.save()
    print(f"{len(refused)} mutants are refused by mypy; {len(todo)} to run", flush=True)
    if todo:
        _run(todo, _FIRST_SECONDS)
    for file in files:
        file.load()
    left = [name for file in files for name, status in file.exit_code_by_key.items() if status == SURVIVED]
    again = sorted(set(left) & set(todo))
    if again:
        print(f"{len(again)} survived the tests that are most about them; trying more", flush=True)
        _run(again, _LAST_SECONDS)
    for file in files:
        file.load()
    return _print_score(files)


def _chosen(name: str, status: int | None, patterns: list[str]) -> bool:
    groups = {"survivors": status in (SURVIVED, UNTESTED), "rest": status is None}
    return any(groups[each] if each in groups else fnmatch.fnmatch(name, each) for each in patterns)


def _stage() -> None:
    """Lays the packages side by side, as mutmut wants them."""
    STAGE.mkdir(parents=True, exist_ok=True)
    for name, source in STAGED.items():
        if not (STAGE / name).is_symlink():
            (STAGE / name).symlink_to(ROOT / source)
    os.chdir(STAGE)


def _write_mutants() -> None:
    replaced = {
        mutators.operator_string: _strings,
        mutators.operator_arg_removal: _arguments,
        mutators.operator_name: _names,
    }
    mutators.mutation_operators[:] = [
        (kind, replaced.get(operator, operator)) for kind, operator in mutators.mutation_operators
    ]
    # Nor is what only the log gets asserted by the tests that run here.
    file_mutation.NEVER_MUTATE_FUNCTION_CALLS.update(("log_event", "log_exception"))
    COPY.mkdir(exist_ok=True)
    with mutmut.CatchOutput():
        copy_src_dir()
        copy_also_copy_files()
        mutmut.create_mutants(os.cpu_count() or 1)


def _is_phrase(node: Any) -> bool:
    """Texts with a space are for people, or SQL that no longer runs: no test is to assert their wording."""
    return isinstance(node, cst.FormattedString | cst.ConcatenatedString) or (
        isinstance(node, cst.SimpleString) and " " in node.value.strip("\"' ")
    )


def _strings(node: Any) -> Any:
    """One change of a name is enough; in another case SQLite takes it for the same."""
    return () if _is_phrase(node) else itertools.islice(mutators.operator_string(node), 1)


def _arguments(node: Any) -> Any:
    # Of `zip`, an assertion.
    strict = {id(argument) for argument in node.args if argument.keyword and argument.keyword.value == "strict"}
    _ASSERTIONS.update((id(argument.value), argument.value) for argument in node.args if id(argument) in strict)
    for changed in mutators.operator_arg_removal(node):
        kept = {id(argument) for argument in changed.args}
        gone = [argument for argument in node.args if id(argument) not in kept]
        if not any(_is_phrase(argument.value) or id(argument) in strict for argument in gone):
            yield changed


def _names(node: Any) -> Any:
    return () if id(node) in _ASSERTIONS else mutators.operator_name(node)


def _refused_by_types() -> set[str]:
    """What mypy finds a fault in: nobody could commit it."""
    command = [str(Path(sys.executable).with_name("mypy")), *config().type_check_command[1:]]
    done = subprocess.run(command, cwd=COPY, capture_output=True, text=True, check=False)
    refused: set[str] = set()
    functions: dict[str, list[tuple[int, str]]] = {}
    for line in done.stdout.splitlines():
        found = json.loads(line)
        path = found["file"]
        if found["severity"] != "error":
            continue
        if path not in functions:
            functions[path] = sorted(_functions(ast.parse((COPY / path).read_text())))
        name = functions[path][bisect.bisect_right(functions[path], (found["line"], "\uffff")) - 1][1]
        if "__mutmut_" not in name or name.endswith("_orig"):
            raise SystemExit(f"mypy refuses what was not changed: {path}:{found['line']}: {found['message']}")
        refused.add(get_mutant_name(Path(path), name))
    return refused


def _functions(module: ast.Module) -> Iterator[tuple[int, str]]:
    for node in module.body:
        for inner in node.body if isinstance(node, ast.ClassDef) else [node]:
            if isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef):
                yield inner.lineno, inner.name


def _run(todo: list[str], seconds: float) -> None:
    (COPY / "todo.json").write_text(json.dumps({"mutants": todo, "seconds": seconds}))
    environment = {**os.environ, "PYTHONPATH": str(COPY)}
    shutil.rmtree(COPY / "temporary", ignore_errors=True)
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    options = [*config().pytest_add_cli_args, *config().pytest_add_cli_args_test_selection]
    command = [sys.executable, "-m", "pytest", "-qs", "--tb=native", "-p", "tests.mutants.plugin", *options]
    if status := subprocess.run(command, cwd=COPY, env=environment, check=False).returncode:
        raise SystemExit(status)


def _print_score(files: list[SourceFileMutationData]) -> int:
    counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for file in files:
        package = file.path.parts[1]
        for name, status in file.exit_code_by_key.items():
            kind = KINDS[status]
            counts[package][kind] += 1
            if kind in ("survived", "no test"):
                print(f"{kind}: {name}")
    kinds = KINDS.values()
    print(f"\n{'package':<12}" + "".join(f"{kind:>10}" for kind in kinds) + f"{'score':>10}")
    total = sum(counts.values(), Counter())
    for package, count in [*sorted(counts.items()), ("all", total)]:
        print(f"{package:<12}" + "".join(f"{count[kind]:>10}" for kind in kinds) + f"{_score(count):>9.1f}%")
    return int(_score(total) < LEAST_SCORE)


def _score(count: Counter[str]) -> float:
    """Of those that were run, and of those that mypy refuses."""
    return 100.0 * (count["killed"] + count["mypy"] + count["timeout"]) / max(1, count.total() - count["not run"])


if __name__ == "__main__":
    sys.exit(main())
