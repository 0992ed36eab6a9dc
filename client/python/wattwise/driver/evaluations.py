r"""Reads the metric and the epoch of every evaluation from a command's output, by the patterns of its job file.

A line counts when it is complete. Of a line that carriage returns overwrite, such as a progress bar, the last state
that matches counts, or, with an epoch pattern, the last state of each epoch. Terminal sequences, such as those for
colours, are removed first. Of a line above `_LONGEST` bytes only the beginning and the end are searched.
"""

from __future__ import annotations

import os
import re
import signal
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import NamedTuple, TypeAlias

from wattwise.driver.outcome import MeasuredEpoch, without_terminal_sequences
from wattwise.files import FileError, open_file
from wattwise.rules import MAX_INT32

_HALF = 4096
_LONGEST = 2 * _HALF
_CHUNK, _CHUNKS_PER_READ = 65_536, 64
"""A command that prints faster than it is read must not keep the driver from its other work."""
_MOST_BEHIND = 2**28
"""Bytes that are not read yet; what is before them is left out."""
_UNMATCHABLE = re.compile(r"[\x00-\x08\x0a-\x1f]")
_LINE_ENDS = re.compile(rb"([\r\n])")
_PUNCTUATION = ".,;:)]}'\""
_CONTINUED = re.compile(r"(?<=[0-9.])[0-9]|[eE][-+]?[0-9]|\.[0-9]")
_COMMA = re.compile(r"(?<=[0-9]),(?:[0-9]{3}(?![0-9])|[0-9]+(?![0-9.]))")
"""A comma within a number: before decimals, or between thousands. The one in "1,0.5" separates two numbers."""
_BEGUN = re.compile(r"(?:^|[\s:=(\[,])-$")
_BEGUN_BY_DIGIT = re.compile(r"[0-9]\.?$")
_FRACTION = re.compile(r"\.[0-9]*[1-9]")
_DIGITS_BEFORE, _DIGITS_AFTER = re.compile(r"[0-9]*$"), re.compile(r"[0-9]*")
_WORD_BEFORE, _WORD_AFTER = re.compile(r"\S*$"), re.compile(r"\S*")
_LONGEST_SEARCH_SECONDS = 2.0
"""The limit for one line: a repetition within a repetition, such as (a+)+, may take years."""


Measure: TypeAlias = Callable[[], tuple[float, float]]
"""Returns the time in seconds and the energy in joules of the command so far."""


def fault_in(pattern: str, group: str) -> str | None:
    """Returns why a pattern cannot be used; None if it can. See `compiled`."""
    try:
        compiled(pattern, group)
    except ValueError as error:
        return str(error)
    return None


def compiled(pattern: str, group: str) -> re.Pattern[str]:
    """Returns the pattern as a regular expression.

    Args:
        pattern: as in the job file.
        group: the name of the group that counts if the pattern has several.

    Raises:
        ValueError: if the pattern cannot be used; says what to change.
    """
    if found := _UNMATCHABLE.search(pattern):
        raise ValueError(
            f"is {pattern!r}; the control character {found[0]!r} is in no line: write the pattern in single quotes, so "
            "that TOML leaves its backslashes alone"
        )
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            expression = re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        raise ValueError(f"is '{pattern}', which is not a regular expression: {error}") from None
    if expression.groups != 1 and group not in expression.groupindex:
        raise ValueError(
            f"is '{pattern}', which has {expression.groups} groups; put the number, and nothing else, in parentheses, "
            f"as in '{group}: (\\S+)'; write other groups as (?:...), or name the one with the number (?P<{group}>...)"
        )
    return expression


class _State(NamedTuple):
    """A state of a line that has matched, with the epoch as the output has it, and the sums when it was first read."""

    match: re.Match[str]
    epoch: str
    sums: tuple[float, float]


class EvaluationReader:
    """Reads evaluations from a growing file, and measures the epochs before them.

    Args:
        path: the file.
        metric_pattern: a valid pattern.
        epoch_pattern: a valid pattern; None counts evaluations.
        say: prints a message, at most once for each kind of fault.
    """

    def __init__(self, path: Path, metric_pattern: str, epoch_pattern: str | None, say: Callable[[str], None]) -> None:
        self._path = path
        self._metric = compiled(metric_pattern, "metric")
        self._epochs = None if epoch_pattern is None else compiled(epoch_pattern, "epoch")
        self._say = say
        self._faults: dict[str, str] = {}
        self._offset = 0
        self._text = b""
        # The newest state that has matched, of the line that is not complete yet.
        self._state: _State | None = None
        self._is_too_slow = False
        # The newest epoch, as the output has it.
        self._epoch = ""
        # Added to the epochs in the output: 1 if the first one with a metric is 0.
        self._shift: int | None = None
        self._last = 0

    @property
    def fault(self) -> str:
        """Why there is no evaluation so far."""
        unmatched = f"metric_pattern {self._metric.pattern!r} matches no line of {self._path}"
        return next(iter(self._faults.values()), unmatched)

    def read(self, measure: Measure, *, to_end: bool = False) -> Iterator[MeasuredEpoch]:
        """Yields the evaluations in what was added to the file.

        Args:
            measure: called when the metric of an epoch is read, which may be before its line is complete.
            to_end: whether nothing will be added any more, so that the last line is complete.
        """
        for chunk in self._added(to_end=to_end):
            if self._is_too_slow:
                break
            yield from self._parse(chunk, measure)
        if to_end:
            yield from self._parse(b"\n", measure)

    def _added(self, *, to_end: bool) -> Iterator[bytes]:
        """Yields what was added to the file."""
        try:
            file = open_file(self._path, "rb", within=self._path.parent)
        except FileNotFoundError:
            # A command may delete its own log.
            return
        except (OSError, FileError) as error:
            self._warn("file", f"the output cannot be read: {error}")
            return
        with file:
            size = os.fstat(file.fileno()).st_size
            if size - self._offset > _MOST_BEHIND:
                self._warn("size", f"the output has grown too fast: bytes from {self._offset:,} on are left out")
                self._offset = size - _MOST_BEHIND
            file.seek(self._offset)
            end = size if to_end else min(size, self._offset + _CHUNKS_PER_READ * _CHUNK)
            while self._offset < end and (chunk := file.read(min(_CHUNK, end - self._offset))):
                self._offset += len(chunk)
                yield chunk

    def _parse(self, chunk: bytes, measure: Measure) -> Iterator[MeasuredEpoch]:
        parts = _LINE_ENDS.split(chunk)
        for text, end in zip(parts[::2], [*parts[1::2], b""], strict=True):
            self._text += text
            if len(self._text) > _LONGEST:
                # No pattern matches across a line break.
                self._text = self._text[:_HALF] + b"\n" + self._text[-_HALF:]
            if end:
                yield from self._search(without_terminal_sequences(self._text.decode(errors="replace")), measure)
                self._text = b""
            if end == b"\n":
                yield from self._evaluated()

    def _search(self, text: str, measure: Measure) -> Iterator[MeasuredEpoch]:
        """Looks for a match in a line, or in one state of a line that overwrites itself."""
        if self._is_too_slow:
            return
        try:
            with _time_limit():
                epoch = None if self._epochs is None else self._epochs.search(text)
                match = self._metric.search(text)
        except TimeoutError:
            self._is_too_slow = True
            self._warn(
                "slow",
                f"the patterns take more than {_LONGEST_SEARCH_SECONDS:g} s for a line of {len(text)} characters, so "
                "the output is no longer read: correct them; a repetition within a repetition, such as (a+)+, takes "
                "this long",
            )
            return
        if epoch is not None:
            self._epoch = _whole_epoch(epoch)
        if match is not None:
            state = self._state
            if state is None or (_group(match, "metric"), self._epoch) != (_group(state.match, "metric"), state.epoch):
                if self._epochs is not None and state is not None and state.epoch != self._epoch:
                    yield from self._evaluated()
                self._state = _State(match, self._epoch, measure())

    def _evaluated(self) -> Iterator[MeasuredEpoch]:
        """Yields the evaluation of a complete line that has matched, if it is valid."""
        if self._state is None:
            return
        (match, epoch, sums), self._state = self._state, None
        text = _group(match, "metric")
        metric = _number(text)
        whole = "" if metric is None else _cut_number(match)
        if metric is None or whole:
            fault = (
                rf"{text!r}, a part of {whole!r}: the line is ignored; its group must match the whole number, as in "
                r"'val_acc: (\S+)', with .*? instead of .* before it, and the number must have no comma"
                if whole
                else f"{text[:80]!r}, which is not a number: the line is ignored; its group must match the number "
                "alone, as in 'val_acc: ([0-9.]+)%'"
            )
            self._warn("metric", f"metric_pattern finds {fault}")
        elif self._epochs is None:
            self._last += 1
            yield MeasuredEpoch(self._last, metric, *sums)
        elif not epoch:
            self._warn(
                "missing",
                "a metric was printed before the first epoch, and is ignored: epoch_pattern must match in the line of "
                "the metric, or before it",
            )
        elif (number := _number(epoch)) is None or not number.is_integer() or not 0 <= number < MAX_INT32:
            self._warn(
                "epoch",
                f"epoch_pattern finds {epoch[:80]!r}, which is not a whole number from 0: the metric is ignored; "
                "correct the pattern, or omit it to count every metric as an epoch",
            )
        else:
            yield from self._in_order(int(number), metric, sums)

    def _in_order(self, number: int, metric: float, sums: tuple[float, float]) -> Iterator[MeasuredEpoch]:
        """Yields the evaluation of epoch `number` of the output, unless the same or a later one was before."""
        if self._shift is None:
            self._shift = int(number == 0)
        epoch = number + self._shift
        if epoch > self._last:
            self._last = epoch
            yield MeasuredEpoch(epoch, metric, *sums)
        else:
            self._warn(
                "order",
                f"the output has another metric of epoch {epoch} after that of epoch {self._last}: each epoch counts "
                "once, with its first metric, and epochs must not go backwards; the others are ignored",
            )

    def _warn(self, kind: str, text: str) -> None:
        if kind not in self._faults:
            self._faults[kind] = text
            self._say(text)


def _group(match: re.Match[str], name: str) -> str:
    """Returns what the group with the number has matched."""
    return match[_key(match, name)] or ""


def _key(match: re.Match[str], name: str) -> str | int:
    return name if name in match.re.groupindex else 1


def _number(text: str) -> float | None:
    """Returns the number, without the punctuation that follows it; None if the text is not one."""
    try:
        return float(text.strip().rstrip(_PUNCTUATION))
    except ValueError:
        return None


def _cut_number(match: re.Match[str]) -> str:
    """Returns the number of which the group has matched only a part, such as "1" of "1e-05"; empty if none."""
    start, end = match.span(_key(match, "metric"))
    line, text = match.string, _group(match, "metric")
    before = line[:start]
    is_cut = (
        _CONTINUED.match(line, end)
        or _BEGUN.search(before)
        or (text[:1] in "0123456789." and _BEGUN_BY_DIGIT.search(before))
        or ("." not in text and not before.endswith(",") and _COMMA.match(line, end))
    )
    if not is_cut:
        return ""
    return _around(match, "metric", _WORD_BEFORE, _WORD_AFTER)[:80]


def _whole_epoch(match: re.Match[str]) -> str:
    """Returns the epoch with all its digits, of which the group may have matched only some, and with a fraction."""
    fraction = _FRACTION.match(match.string, match.end(_key(match, "epoch")))
    return _around(match, "epoch", _DIGITS_BEFORE, _DIGITS_AFTER) + (fraction[0] if fraction else "")


def _around(match: re.Match[str], name: str, before: re.Pattern[str], after: re.Pattern[str]) -> str:
    """Returns what the group has matched, with what is before and after it."""
    start, end = match.span(_key(match, name))
    first, last = before.search(match.string[:start]), after.match(match.string, max(end, 0))
    return f"{first[0] if first else ''}{_group(match, name)}{last[0] if last else ''}"


@contextmanager
def _time_limit() -> Iterator[None]:
    """Limits the time of a search in the main thread, which signals interrupt.

    Raises:
        TimeoutError: if it takes longer.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGALRM, _time_out)
    try:
        signal.setitimer(signal.ITIMER_REAL, _LONGEST_SEARCH_SECONDS)
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _time_out(_number: int, _frame: FrameType | None) -> None:
    raise TimeoutError
