"""Placeholders in the arguments of a command, such as `{batch_size}`; `{{` and `}}` stand for literal braces."""

from __future__ import annotations

import difflib
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import PurePath

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

_SHELLS = ("sh", "ash", "bash", "dash", "ksh", "mksh", "zsh")
_WITH_VALUE = ("--rcfile", "--init-file")
"""Long options of shells that take the next word."""
_EVALUATING = ("fish", "csh", "tcsh", "su", "ssh", "rsh", "pdsh", "parallel", "watch")
"""Other programs that have a shell evaluate their arguments."""
_SHELL_TEXT = re.compile(r"[\s;&|()<>\"'`$\\*?!#~]")
"""What a word has only if something evaluates it."""
_NESTED = re.compile(
    rf"(?<![\w.-])(?:eval|trap|alias|xargs|{'|'.join((*_SHELLS, *_EVALUATING))})(?![\w.-])"
    r"|(?<!\S)(?:-\w*c|--wrap|--command)(?!\w)"
)
"""What may evaluate a part of a script once more."""
_QUOTES = re.compile(r"\\.|\\\Z|['\"]|`|<<|\$(?:['\"({]|\Z)|(?<![^\s;&|()<>])#", re.DOTALL)
"""What quotes in the beginning of a shell's script, and what may have quotes of its own or changes what follows."""

_TOKEN = re.compile(r"\{\{|\}\}|\{([^{}]*)\}|[{}]")


def placeholders_in(word: str) -> set[str]:
    """Returns the names of the placeholders in an argument."""
    return {match[1] for match in _TOKEN.finditer(word) if match[1] is not None}


def faults_in(word: str) -> Iterator[str]:
    """Yields the faults of the placeholders in an argument."""
    for match in _TOKEN.finditer(word):
        if match[0] in ("{", "}"):
            yield f"{word!r} has a single {match[0]!r}; write {2 * match[0]!r} for a literal brace"
        elif match[1] is not None and match[1] not in PLACEHOLDERS:
            nearest = difflib.get_close_matches(match[1], PLACEHOLDERS, n=1)
            known = ", ".join(f"{{{name}}}" for name in PLACEHOLDERS)
            hint = f"did you mean {{{nearest[0]}}}?" if nearest else f"the placeholders are {known}."
            yield f"{word!r}: {match[0]} is unknown; {hint} Write {{{{ and }}}} for literal braces"


def substitute(command: Sequence[str], values: Mapping[str, str]) -> tuple[str, ...]:
    """Returns a command without faults, with its placeholders replaced by their values.

    Raises:
        ValueError: if a shell may evaluate a value that cannot be quoted where it stands; names its placeholder.
    """
    script = _script_of(command)
    evaluating = any(PurePath(word).name in _EVALUATING for word in command)
    words = []
    for place, word in enumerate(command):
        beside = _TOKEN.sub(lambda token: "" if token[1] else token[0], word)
        if evaluating or _SHELL_TEXT.search(beside) or place == script:
            plain = place == script and not evaluating and not _NESTED.search(beside)
            words.append(_substituted(word, values, _quoted if plain else _harmless))
        else:
            words.append(_substituted(word, values, lambda value, _name, _before: value))
    return tuple(words)


def _script_of(command: Sequence[str]) -> int | None:
    """Returns the place of the script in a command that starts a shell, such as `sh -c SCRIPT`; None without one."""
    in_shell = asked = of_option = False
    for place, word in enumerate(command):
        if of_option:
            of_option = False
        elif in_shell and word.startswith(("-", "+")):
            short = not word.startswith("--")
            # `-o` takes a word, as in `bash -eo pipefail -c SCRIPT`.
            asked, of_option = asked or (short and "c" in word), word in _WITH_VALUE or (short and "o" in word.lower())
        elif in_shell and asked:
            return place
        else:
            in_shell, asked = PurePath(word).name in _SHELLS, False
    return None


def _substituted(word: str, values: Mapping[str, str], put: Callable[[str, str, str], str]) -> str:
    """Returns a word with its placeholders replaced by `put(value, name, text before it)`."""
    done, end = "", 0
    for match in _TOKEN.finditer(word):
        done += word[end : match.start()]
        end = match.end()
        done += match[0][0] if match[1] is None else put(values[match[1]], match[1], done)
    return done + word[end:]


def _is_plain(value: str) -> bool:
    return not value or shlex.quote(value) == value


def _harmless(value: str, name: str, _before: str) -> str:
    """Returns a value that a shell takes as it is without quotes."""
    if not _is_plain(value):
        raise ValueError(
            f"{{{name}}} is {value!r}, which a shell may evaluate in this argument: let the command read the variable "
            f'WATTWISE_{name.upper()} instead, in a shell as "$WATTWISE_{name.upper()}"'
        )
    return value


def _quoted(value: str, name: str, script: str) -> str:
    """Returns a value as it has to stand behind the beginning of a script, so that the shell takes it as it is."""
    if _is_plain(value):
        return value
    quote = ""
    for match in _QUOTES.finditer(script):
        found = match[0]
        if quote == "'":
            quote = "" if found[-1] == "'" else quote
        elif found in ("'", '"'):
            quote = "" if found == quote else quote or found
        elif (found[0] != "\\" or len(found) == 1) and not (quote and found in ("#", "<<", "$'")):
            raise ValueError(
                f"{{{name}}} is {value!r}, which a shell would evaluate, and its place in the script is too intricate "
                f'to quote it: write "$WATTWISE_{name.upper()}" instead'
            )
    if quote == "'":
        return value.replace("'", "'\\''")
    return re.sub(r'([\\"$`])', r"\\\1", value) if quote else shlex.quote(value)
