"""How every command begins and ends: its arguments, its output, and what cannot be written.

A character that a terminal cannot encode is escaped. Output that cannot be written ends the command with one line on
stderr, or silently if the reader of a pipe is gone. On the standard library alone: the server uses this module too.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from wattwise.variables import control_fault

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

FAILED, MISUSED, INTERRUPTED, PIPE_CLOSED = 1, 2, 130, 141
"""Exit statuses."""


class OutputError(Exception):
    """Standard output cannot be written. No OSError, which the handlers of files would take for theirs."""


def run_command(name: str, arguments: Sequence[str], run: Callable[[Sequence[str]], int]) -> int:
    """Runs a command.

    Args:
        name: its name in messages.
        arguments: its arguments.
        run: does what they say; returns the exit status.

    Returns:
        The exit status: that of `run`; 1 if the output cannot be written, 2 if an argument has a control character or
        is not UTF-8, 130 after Ctrl-C, 141 if the reader of the output is gone.

    Raises:
        SystemExit: with a status of `argparse`.
    """
    prepare()
    if fault := _fault_of(arguments):
        write_line(f"{name}: {fault}")
        return MISUSED
    try:
        try:
            status = run(arguments)
        except SystemExit:
            sys.stdout.flush()
            raise
        sys.stdout.flush()
    except KeyboardInterrupt:
        return INTERRUPTED
    except UnicodeEncodeError as error:
        # Of an argument: what is printed is escaped.
        write_line(f"{name}: {error.object!a:.200} is not UTF-8: correct it, or set LC_ALL=C.UTF-8")
        return MISUSED
    except (OutputError, BrokenPipeError) as error:
        # Python would fail again when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error.__cause__ or error, BrokenPipeError):
            return PIPE_CLOSED
        write_line(f"{name}: {error}")
        return FAILED
    return status


def prepare() -> None:
    """Prepares the standard streams of this process, unless a program has replaced them."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if not _is_open(number):
            # Otherwise a file that is opened later would get the number, and with it what is printed.
            os.open(os.devnull, os.O_RDWR)
            setattr(sys, name, os.fdopen(number, "w" if number else "r", encoding="utf-8", closefd=False))
    if sys.stdout is sys.__stdout__ and isinstance(sys.stdout, io.TextIOWrapper):
        raw, whole = _Output(sys.stdout.fileno(), "w", closefd=False), sys.stdout.write_through
        sys.stdout = io.TextIOWrapper(
            raw if whole else io.BufferedWriter(raw),
            encoding=sys.stdout.encoding,
            errors="backslashreplace",
            line_buffering=sys.stdout.line_buffering,
            write_through=whole,
        )


def write_line(line: str) -> None:
    """Writes a line to stderr, if it can be written."""
    with contextlib.suppress(OSError):
        print(line, file=sys.stderr)  # noqa: T201 - the command's answer


def printable(text: str) -> str:
    """Returns the text with those characters escaped that a terminal does not show, such as those that erase text."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def _is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


class _Output(io.FileIO):
    def write(self, data: ReadableBuffer, /) -> int:
        """Writes, and marks an error as that of the output."""
        try:
            return super().write(data)
        except OSError as error:
            raise OutputError(f"the output cannot be written: {error.strerror}") from error


def _fault_of(arguments: Sequence[str]) -> str:
    """Returns what is wrong with an argument that has a control character, named by its option if it has one."""
    for before, word in zip(["", *arguments], arguments, strict=False):
        if fault := control_fault(word):
            option, equals, _ = word.partition("=")
            named = option if equals and option.startswith("-") else before if before.startswith("-") else repr(word)
            return f"{named} {fault}"
    return ""
