"""Placeholders in the arguments of a command, such as `{batch_size}`; `{{` and `}}` stand for literal braces."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping

PLACEHOLDERS = (
    "batch_size",
    "learning_rate",
    "seed",
    "recurrence",
    "try",
    "target_metric",
    "max_epochs",
    "log_dir",
)

_TOKEN = re.compile(r"\{\{|\}\}|\{([^{}]*)\}|[{}]")


def placeholders_in(word: str) -> set[str]:
    """The names of the placeholders in an argument."""
    return {match[1] for match in _TOKEN.finditer(word) if match[1] is not None}


def faults_in(word: str) -> Iterator[str]:
    """The faults of the placeholders in an argument."""
    for match in _TOKEN.finditer(word):
        if match[0] in ("{", "}"):
            yield f"{word!r} has a single {match[0]!r}; write {2 * match[0]!r} for a literal brace"
        elif match[1] is not None and match[1] not in PLACEHOLDERS:
            nearest = difflib.get_close_matches(match[1], PLACEHOLDERS, n=1)
            known = ", ".join(f"{{{name}}}" for name in PLACEHOLDERS)
            hint = f"did you mean {{{nearest[0]}}}?" if nearest else f"the placeholders are {known}."
            yield f"{word!r}: {match[0]} is unknown; {hint} Write {{{{ and }}}} for literal braces"


def substitute(word: str, values: Mapping[str, str]) -> str:
    """An argument without faults, with its placeholders replaced by their values."""
    return _TOKEN.sub(lambda match: match[0][0] if match[1] is None else values[match[1]], word)
