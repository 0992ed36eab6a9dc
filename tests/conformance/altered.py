"""Tables with wrong expectations, one of every kind. A comparison that they pass compares too little."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import yaml

from tests.conformance.runner import Scenario

Change = Callable[[dict[str, Any]], object]

PRESENT = ("cost_bound", "end_time")
"""Fields that distinguish unset from zero."""


def write_altered(tables: list[Path], folder: Path) -> Iterator[tuple[list[Path], dict[Scenario, str]]]:
    """Writes copies of the tables until every kind of expectation is altered in one of them.

    Yields:
        The tables of a copy, and the scenarios altered in it with the kind of their alteration.
    """
    contents = {table.name: yaml.safe_load(table.read_text()) for table in tables}
    choices = _choices(contents)
    while choices:
        changed, altered = copy.deepcopy(contents), dict[Scenario, str]()
        # The rarest kinds choose first. A kind without a free scenario waits for the next copy.
        for kind in sorted(choices, key=lambda kind: len(choices[kind])):
            free = next((place for place in choices[kind] if place not in altered), None)
            if free is not None:
                file, name = free
                choices.pop(kind)[free](next(one for one in changed[file] if one["name"] == name))
                altered[free] = kind
        for file, scenarios in changed.items():
            (folder / file).write_text(yaml.safe_dump(scenarios, sort_keys=False))
        yield [folder / file for file in changed], altered


def _choices(contents: dict[str, Any]) -> dict[str, dict[Scenario, Change]]:
    found: dict[str, dict[Scenario, Change]] = {}
    for file, scenarios in contents.items():
        for scenario in scenarios:
            for kind, change in _changes(scenario):
                found.setdefault(kind, {}).setdefault((file, scenario["name"]), change)
    return found


def _changes(scenario: dict[str, Any]) -> Iterator[tuple[str, Change]]:
    """Yields all possible alterations of a scenario, with their kinds."""
    if "state" in scenario:
        for event in scenario["then"]:
            yield f"state after {event}", lambda s, event=event: _alter(s["then"], event)  # type: ignore[misc]
        yield "unknown key of a scenario", lambda s: s.__setitem__("dance", {})
        return
    if "walk" in scenario:
        yield "batch size of a walk", lambda s: s["walk"][-1].__setitem__(0, s["walk"][-1][0] + 1)
        if _bounded(scenario["walk"]):
            yield "convergence of a walk's trial", lambda s: _exceed(_bounded(s["walk"])[-1])
    for name, value in scenario.get("job_then", {}).items():
        if isinstance(value, list) and value:
            yield f"length of {name}", lambda s, name=name: s["job_then"][name].pop()  # type: ignore[misc]
        yield f"job_then {_sort(name, value)}", lambda s, name=name: _alter(s["job_then"], name)  # type: ignore[misc]
    yield "unknown step", lambda s: s.setdefault("steps", []).append({"dance": {}})
    yield "unknown key of a scenario", lambda s: s.__setitem__("dance", {})
    steps = scenario.get("steps", ())
    for number, step in enumerate(steps):
        for kind, change in _changes_of(step):
            yield kind, lambda s, number=number, change=change: change(s["steps"][number])  # type: ignore[misc]
        if "close" in step and "expect" in steps[number - 1]:
            yield "end after close", lambda s, number=number: s["steps"].pop(number - 1)  # type: ignore[misc]


def _changes_of(step: dict[str, Any]) -> Iterator[tuple[str, Change]]:
    (call,) = step.keys() - {"then", "error", "status", "fields", "metadata"}
    yield f"unknown argument of {call}", lambda s: s[call].__setitem__("dance", 1)
    for name, value in step.get("then", {}).items():
        if value is None:
            yield "unset field", lambda s, name=name: s["then"].__setitem__(name, 12345)  # type: ignore[misc]
        else:
            if name in PRESENT:
                yield "set field", lambda s, name=name: s["then"].__setitem__(name, None)  # type: ignore[misc]
            if isinstance(value, list) and value:
                yield f"length of {name}", lambda s, name=name: s["then"][name].pop()  # type: ignore[misc]
            yield f"then of {call}", lambda s, name=name: _alter(s["then"], name)  # type: ignore[misc]
            yield f"then with {_sort(name, value)}", lambda s, name=name: _alter(s["then"], name)  # type: ignore[misc]
    if "error" in step:
        where = "expect" if call == "expect" else "a call"
        yield f"error of {where}", lambda s: _alter(s, "error")
        yield f"no error of {where}", lambda s: [s.pop(k) for k in ("error", "status", "fields", "metadata") if k in s]
    if "status" in step:
        yield "status of an error", lambda s: _alter(s, "status")
    if "fields" in step:
        yield "missing fault of an error", lambda s: s["fields"].pop()
        yield "additional fault of an error", lambda s: s["fields"].append("job.dance")
    for key, part in step.get("metadata", {}).items():
        kind = "absent metadata" if part is None else "metadata of an error"
        yield kind, lambda s, key=key: s["metadata"].__setitem__(key, _other(s["metadata"][key]))  # type: ignore[misc]
        if part is not None:
            yield "present metadata", lambda s, key=key: s["metadata"].__setitem__(key, None)  # type: ignore[misc]


def _sort(name: str, value: object) -> str:
    if name in ("message", "reason") or isinstance(value, list):
        return name
    return {bool: "bool", int: "number", float: "number", str: "enum", dict: "message"}.get(type(value), "unset")


def _alter(holder: dict[str, Any], name: str) -> None:
    holder[name] = _other(holder[name])


def _other(value: Any) -> Any:
    if isinstance(value, bool):
        return not value
    if isinstance(value, float):
        # So close that a tolerance that is too large shows.
        return value + max(1e-6, abs(value) * 1e-6) if math.isfinite(value) else 1.0
    if isinstance(value, int):
        return value + 1
    if isinstance(value, list):
        return _other_list(copy.deepcopy(value))
    if isinstance(value, dict):
        return {**value, (last := list(value)[-1]): _other(value[last])}
    return "x" if value is None else f"{value}_X"


def _other_list(value: list[Any]) -> list[Any]:
    if not value:
        return [1]
    if isinstance(value[-1], dict):
        _alter(value[-1], list(value[-1])[-1])
    else:
        value[-1] = _other(value[-1])
    return value


def _bounded(walk: list[Any]) -> list[Any]:
    """Returns the converged trials that had a bound: their batch size was not the best known one."""
    found, best = [], None
    for line in walk:
        size, cost, converged = line
        if converged and best is not None and size != best[0]:
            found.append(line)
        if converged and (best is None or cost < best[1]):
            best = line
    return found


def _exceed(line: list[Any]) -> None:
    """Raises the cost of a walk's trial above its bound."""
    line[1] *= 1000
