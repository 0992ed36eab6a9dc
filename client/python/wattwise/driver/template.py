"""Placeholders in the words of a command: `{batch_size}` and the like, with `{{` and `}}` for braces themselves."""

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

_PIECE = re.compile(r"\{\{|\}\}|\{([^{}]*)\}|[{}]")


def names_in(word: str) -> set[str]:
    """The placeholders of a word."""
    return {found[1] for found in _PIECE.finditer(word) if found[1] is not None}


def faults_in(word: str) -> Iterator[str]:
    """What is wrong with the placeholders of a word."""
    for found in _PIECE.finditer(word):
        if found[0] in ("{", "}"):
            yield f"{word!r} has a single {found[0]!r}; write {2 * found[0]!r} for the brace itself"
        elif found[1] is not None and found[1] not in PLACEHOLDERS:
            nearest = difflib.get_close_matches(found[1], PLACEHOLDERS, n=1)
            there = ", ".join(f"{{{name}}}" for name in PLACEHOLDERS)
            hint = f"did you mean {{{nearest[0]}}}?" if nearest else f"there are {there}"
            yield f"{word!r}: {found[0]} is unknown; {hint} Write {{{{ and }}}} for braces themselves"


def filled(word: str, values: Mapping[str, str]) -> str:
    """The word with its placeholders filled in.

    Args:
        word: a word without faults.
        values: what stands for each placeholder that it has.
    """

    def value(found: re.Match[str]) -> str:
        return values[found[1]] if found[1] is not None else found[0][0]

    return _PIECE.sub(value, word)
