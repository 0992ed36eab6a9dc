"""Prints the figures of the tree: lines, functions, modules per folder, import floors and import circles.

    python tests/house.py [TREE]

TREE is the root of a checkout, by default this one. To compare with another commit, create its tree with
`git worktree add --detach FOLDER COMMIT`. The script parses the sources and imports nothing of them.
"""

from __future__ import annotations

import argparse
import ast
import sys
from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

PARTS = {
    "server": ("server", "wattwise_server"),
    "client": ("client/python", "wattwise"),
    "replay": ("server", "wattwise_replay"),
    "web": ("server", "wattwise_web"),
    "tests": (".", "tests"),
}
SHORT = 3
_Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Module:
    """One parsed source file."""

    name: str
    path: Path
    is_package: bool

    @cached_property
    def source(self) -> str:
        return self.path.read_text(encoding="utf-8")

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.source)

    @cached_property
    def nodes(self) -> list[ast.AST]:
        return list(ast.walk(self.tree))

    @cached_property
    def lines(self) -> list[str]:
        return self.source.splitlines()

    @cached_property
    def docstring_lines(self) -> frozenset[int]:
        found: set[int] = set()
        for node in self.nodes:
            if isinstance(node, ast.Module | ast.ClassDef | _Function):
                docstring = docstring_of(node)
                if docstring is not None:
                    found.update(range(docstring.lineno, (docstring.end_lineno or 0) + 1))
        return frozenset(found)

    @cached_property
    def documentation(self) -> int:
        """Lines of docstrings, their empty ones included, and lines that hold a comment alone."""
        return sum(
            number in self.docstring_lines or line.lstrip().startswith("#")
            for number, line in enumerate(self.lines, start=1)
        )

    @cached_property
    def code(self) -> int:
        """Lines that are neither empty nor documentation."""
        return sum(
            bool(line.strip()) and number not in self.docstring_lines and not line.lstrip().startswith("#")
            for number, line in enumerate(self.lines, start=1)
        )

    @cached_property
    def functions(self) -> list[_Function]:
        return [node for node in self.nodes if isinstance(node, _Function)]

    @cached_property
    def short_functions(self) -> int:
        return sum(self._body_lines(function) <= SHORT for function in self.functions)

    @cached_property
    def private_functions(self) -> list[_Function]:
        return [node for node in self.functions if node.name.startswith("_") and not node.name.endswith("__")]

    @cached_property
    def private_functions_used_once(self) -> int:
        uses = Counter(
            node.id if isinstance(node, ast.Name) else node.attr
            for node in self.nodes
            if isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Load)
        )
        return sum(uses[function.name] == 1 for function in self.private_functions)

    def imports(self, modules: Mapping[str, Module], *, for_types: bool = False) -> set[str]:
        """Return the modules of the same part that this one imports at run time; on request, for types too."""
        found: set[str] = set()
        for node in self.nodes:
            if node in self._for_types and not for_types:
                continue
            if isinstance(node, ast.Import):
                found.update(alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                origin = self._absolute(node)
                for alias in node.names:
                    submodule = f"{origin}.{alias.name}"
                    found.add(submodule if submodule in modules else origin)
        return (found & set(modules)) - {self.name}

    @cached_property
    def _for_types(self) -> frozenset[ast.AST]:
        """What stands directly below `if TYPE_CHECKING:`."""
        branches = [node for node in self.nodes if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)]
        return frozenset(statement for branch in branches for statement in branch.body)

    def _absolute(self, node: ast.ImportFrom) -> str:
        if not node.level:
            return node.module or ""
        parts = self.name.split(".")
        kept = parts[: len(parts) - node.level + self.is_package]
        return ".".join([*kept, node.module] if node.module else kept)

    def _body_lines(self, function: _Function) -> int:
        statements = function.body[1:] if docstring_of(function) is not None else function.body
        if not statements:
            return 0
        lines = self.lines[statements[0].lineno - 1 : statements[-1].end_lineno]
        return sum(bool(line.strip()) and not line.lstrip().startswith("#") for line in lines)


def docstring_of(node: ast.Module | ast.ClassDef | _Function) -> ast.Expr | None:
    """Return the statement that is the node's docstring."""
    first = node.body[0] if node.body else None
    if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str):
        return first
    return None


def modules_of(root: Path, package: str) -> dict[str, Module]:
    """Return the modules of a package by their dotted names, without generated stubs."""
    found = {}
    for path in sorted((root / package).rglob("*.py")):
        if "_pb2" in path.name:
            continue
        parts = path.relative_to(root).with_suffix("").parts
        is_package = parts[-1] == "__init__"
        name = ".".join(parts[:-1] if is_package else parts)
        found[name] = Module(name, path, is_package)
    return found


def components(graph: Mapping[str, set[str]]) -> list[list[str]]:
    """Return the strongly connected components, those that are imported first (Tarjan)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(node: str) -> None:
        index[node] = low[node] = len(index)
        stack.append(node)
        for other in sorted(graph[node]):
            if other not in index:
                visit(other)
                low[node] = min(low[node], low[other])
            elif other in stack:
                low[node] = min(low[node], index[other])
        if low[node] == index[node]:
            start = stack.index(node)
            found.append(sorted(stack[start:]))
            del stack[start:]

    for node in sorted(graph):
        if node not in index:
            visit(node)
    return found


def longest_chain(graph: Mapping[str, set[str]]) -> list[str]:
    """Return the longest chain of imports; every room of a circle counts as a floor."""
    chains: dict[str, list[str]] = {}
    for component in components(graph):
        below = [chains[other] for node in component for other in sorted(graph[node]) if other not in component]
        chain = [*component, *max(below, key=len, default=[])]
        chains.update(dict.fromkeys(component, chain))
    return max(chains.values(), key=len, default=[])


def rooms(package: str, imports: Mapping[str, set[str]]) -> dict[str, set[str]]:
    """Return which of the package's top-level modules and folders imports which other."""

    def room(module: str) -> str:
        parts = module.split(".")
        return parts[1] if len(parts) > 1 else package

    graph: dict[str, set[str]] = {room(module): set() for module in imports}
    for module, imported in imports.items():
        graph[room(module)].update(room(other) for other in imported)
    return {name: others - {name} for name, others in graph.items()}


def circles(graph: Mapping[str, set[str]]) -> list[list[str]]:
    """Return the groups of nodes that import each other."""
    return [component for component in components(graph) if len(component) > 1]


def print_figures(tree: Path) -> None:
    """Print the table, then each part's longest chain, circles and folders."""
    parts = {part: modules_of(tree / root, package) for part, (root, package) in PARTS.items()}
    columns = {part: list(modules.values()) for part, modules in parts.items()}
    columns["total"] = [module for modules in columns.values() for module in modules]

    def sums(attribute: str) -> list[int]:
        return [sum(getattr(module, attribute) for module in column) for column in columns.values()]

    row("", columns)
    row("modules", map(len, columns.values()))
    code, documentation = sums("code"), sums("documentation")
    row("lines of code", code)
    row("lines of documentation and comments", documentation)
    row("  for each line of code", (f"{d / (c or 1):.2f}" for c, d in zip(code, documentation, strict=True)))
    functions = [sum(len(module.functions) for module in column) for column in columns.values()]
    short = sums("short_functions")
    row("functions", functions)
    row(f"  with {SHORT} lines of body or fewer, without docstring", short)
    row("  share of them", (f"{s / (f or 1):.0%}" for s, f in zip(short, functions, strict=True)))
    row("private functions", (sum(len(module.private_functions) for module in column) for column in columns.values()))
    row("  used once in their module", sums("private_functions_used_once"))
    running = {part: {name: module.imports(all_) for name, module in all_.items()} for part, all_ in parts.items()}
    typed = {
        part: {name: module.imports(all_, for_types=True) for name, module in all_.items()}
        for part, all_ in parts.items()
    }
    floors = {part: rooms(PARTS[part][1], graph) for part, graph in running.items() if part != "tests"}
    row("import floors of the top-level rooms", (len(longest_chain(graph)) for graph in floors.values()))
    row("import circles of rooms", (len(circles(graph)) for graph in floors.values()))
    row("import circles of modules", (len(circles(graph)) for graph in running.values()))
    row("  imports for types alone included", (len(circles(graph)) for graph in typed.values()))
    for part, graph in floors.items():
        write(f"\n{part}: {' > '.join(longest_chain(graph))}")
        for circle in [*circles(graph), *circles(typed[part])]:
            write(f"  circle: {' '.join(circle)}")
        folders = Counter(str(module.path.parent.relative_to(tree)) for module in columns[part])
        for folder, count in sorted(folders.items()):
            write(f"{count:>5} {folder}")


def row(title: str, cells: Iterable[object]) -> None:
    """Print a line of the table."""
    write(f"{title:<52}" + "".join(f"{cell!s:>9}" for cell in cells))


def write(line: str) -> None:
    """Print a line."""
    sys.stdout.write(f"{line}\n")


def main() -> None:
    """Read the arguments and print the figures."""
    parser = argparse.ArgumentParser(description="print the figures of a tree")
    parser.add_argument("tree", nargs="?", type=Path, default=Path(__file__).parents[1], help="root of a checkout")
    print_figures(parser.parse_args().tree.resolve())


if __name__ == "__main__":
    main()
