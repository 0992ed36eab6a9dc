"""Tables with expectations that cannot be met, one of every kind: a runner that passes them compares too little."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import yaml

from tests.conformance.clients import ConformanceError, Scenario

Change = Callable[[dict[str, Any]], object]


def write_altered(tables: list[Path], folder: Path) -> dict[Scenario, str]:
    """Writes a copy of the tables with one expectation of every kind altered, each in a scenario of its own.

    Returns:
        The altered scenarios, with the kind of what was altered in each.
    """
    contents = {table.name: yaml.safe_load(table.read_text()) for table in tables}
    choices = _choices(contents)
    altered: dict[Scenario, str] = {}
    # The rarest kinds choose first.
    for kind in sorted(choices, key=lambda kind: len(choices[kind])):
        free = next((place for place in choices[kind] if place not in altered), None)
        if free is None:
            raise ConformanceError(f"no scenario is left in which to alter {kind}: add one")
        file, name = free
        choices[kind][free](next(scenario for scenario in contents[file] if scenario["name"] == name))
        altered[free] = kind
    for file, scenarios in contents.items():
        (folder / file).write_text(yaml.safe_dump(scenarios, sort_keys=False))
    return altered


def _choices(contents: dict[str, Any]) -> dict[str, dict[Scenario, Change]]:
    found: dict[str, dict[Scenario, Change]] = {}
    for file, scenarios in contents.items():
        for scenario in scenarios:
            for kind, change in _changes(scenario):
                found.setdefault(kind, {}).setdefault((file, scenario["name"]), change)
    return found


def _changes(scenario: dict[str, Any]) -> Iterator[tuple[str, Change]]:
    """Every alteration that a scenario offers, with its kind."""
    if "walk" in scenario:
        yield "the batch size of a walk", lambda s: s["walk"][-1].__setitem__(0, s["walk"][-1][0] + 1)
    for name, value in scenario.get("job_then", {}).items():
        yield f"job_then {_sort(name, value)}", lambda s, name=name: _alter(s["job_then"], name)  # type: ignore[misc]
    yield "a step that nobody knows", lambda s: s.setdefault("steps", []).append({"dance": {}})
    steps = scenario.get("steps", ())
    for number, step in enumerate(steps):
        for kind, change in _changes_of(step):
            yield kind, lambda s, number=number, change=change: change(s["steps"][number])  # type: ignore[misc]
        if "close" in step and "expect" in steps[number - 1]:
            yield "the end after close", lambda s, number=number: s["steps"].pop(number - 1)  # type: ignore[misc]


def _changes_of(step: dict[str, Any]) -> Iterator[tuple[str, Change]]:
    (call,) = step.keys() - {"then", "error", "status", "fields", "metadata"}
    for name, value in step.get("then", {}).items():
        if value is None:
            yield "a field that is unset", lambda s, name=name: s["then"].__setitem__(name, 12345)  # type: ignore[misc]
        else:
            yield f"then of {call}", lambda s, name=name: _alter(s["then"], name)  # type: ignore[misc]
            yield f"then with {_sort(name, value)}", lambda s, name=name: _alter(s["then"], name)  # type: ignore[misc]
    if "error" in step:
        of = "expect" if call == "expect" else "a call"
        yield f"error of {of}", lambda s: _alter(s, "error")
        yield f"no error of {of}", lambda s: [s.pop(k) for k in ("error", "status", "fields", "metadata") if k in s]
    if "status" in step:
        yield "status of an error", lambda s: _alter(s, "status")
    if "fields" in step:
        yield "fields of an error", lambda s: s["fields"].pop()
    for key, part in step.get("metadata", {}).items():
        how = "that is absent" if part is None else "of an error"
        yield f"metadata {how}", lambda s, key=key: s["metadata"].__setitem__(key, _other(s["metadata"][key]))  # type: ignore[misc]


def _sort(name: str, value: object) -> str:
    if name == "message" or isinstance(value, list):
        return name
    return {bool: "a truth", int: "a number", float: "a number", str: "an enum"}.get(type(value), "nothing")


def _alter(holder: dict[str, Any], name: str) -> None:
    holder[name] = _other(holder[name])


def _other(value: Any) -> Any:
    if isinstance(value, bool):
        return not value
    if isinstance(value, float):
        # Near enough to tell who compares too loosely.
        return value + max(1e-6, abs(value) * 1e-6) if math.isfinite(value) else 1.0
    if isinstance(value, int):
        return value + 1
    if isinstance(value, list):
        return _other_list(copy.deepcopy(value))
    return "x" if value is None else f"{value}_X"


def _other_list(value: list[Any]) -> list[Any]:
    last = value[-1]
    if isinstance(last, dict):
        _alter(last, list(last)[-1])
        return value
    return value[:-1]
