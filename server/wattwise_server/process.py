"""What the server takes from its process: open files, memory and signals."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import resource
import signal

_MOST_FILES = 2**20

_M_ARENA_MAX = -8
"""The constant of glibc's malloc.h."""


def raise_file_limit() -> int:
    """Raises the number of files that this process may open as far as it is allowed to; returns the number."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, _MOST_FILES)
    if soft != resource.RLIM_INFINITY and soft < most:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
            return most
    return most if soft == resource.RLIM_INFINITY else soft


def open_files() -> int:
    """Returns the number of open files; 0 where the system does not say."""
    try:
        with os.scandir("/proc/self/fd") as files:
            return sum(1 for _ in files)
    except OSError:
        return 0


def share_heap() -> None:
    """Lets all threads allocate from one heap, where the C library is glibc.

    gRPC keeps about a hundred bytes of each call that is cancelled. In a heap for each thread, which is glibc's usual
    way, these keep four times as much memory from being used again.
    """
    with contextlib.suppress(AttributeError):
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 1)


def signalled(*numbers: signal.Signals) -> asyncio.Event:
    """Returns an event that is set when the process gets one of these signals."""
    event = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in numbers:
        loop.add_signal_handler(number, event.set)
    return event
