"""In place of pytest's loop: collects the tests once, records what each calls, and runs every mutant in a fork."""

from __future__ import annotations

import builtins
import gc
import importlib
import json
import logging
import os
import random
import re
import shutil
import signal
import socket
import sys
import time
import traceback
import types
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from mutmut.mutation import trampoline
from mutmut.mutation.data import SourceFileMutationData
from mutmut.utils.file_utils import walk_mutatable_files

from tests import forking

_WORKERS = int(os.environ.get("WORKERS", os.cpu_count() or 1))
_CALLS = Path("calls").absolute()
_TESTS = Path("tests.json").absolute()
_TEMPORARY = Path("temporary").absolute()
_STARTS_SERVERS = {"server", "watched", "grpc_server", "guarded", "unrefused", "live"}
_kept: list[socket.socket] = []
_NOTICED, _SURVIVED, _UNTESTED, _TIMED_OUT, _BROKEN = 1, 0, 33, 36, 99

_functions: list[tuple[types.FunctionType, dict[str, types.FunctionType]]] = []
"""Every function that has mutants, with those."""


def _keep(mutants: dict[str, types.FunctionType], is_classmethod: bool = False) -> Callable[[Any], Any]:
    """In place of mutmut's decorator, which asks at every call which mutant is active."""
    del is_classmethod

    def decorate(function: types.FunctionType) -> types.FunctionType:
        _functions.append((function, mutants))
        return function

    return decorate


trampoline.wrap_in_trampoline = _keep


def _own_folder(session: pytest.Session) -> Path:
    """Where the tests of this process have their files: those of another one may have the same names."""
    folder = _TEMPORARY / str(os.getpid())
    folder.mkdir(parents=True)
    session.config._tmp_path_factory._basetemp = folder  # type: ignore[attr-defined]
    return folder


def _activate(mutant: str) -> None:
    """Gives the function its mutant's code."""
    os.environ["MUTANT_UNDER_TEST"] = mutant
    module, _, name = mutant.rpartition(".")
    # Most are imported by now.
    importlib.import_module(module)
    for function, mutants in _functions:
        if function.__module__ == module and name in mutants:
            mutated = mutants[name]
            function.__code__ = mutated.__code__
            function.__defaults__, function.__kwdefaults__ = mutated.__defaults__, mutated.__kwdefaults__
            return
    raise KeyError(mutant)


def _record_calls(calls: Callable[[str], None]) -> None:
    """From now on `calls` gets the name of every such function that is called."""
    originals: dict[str, types.FunctionType] = {}

    def called(name: str, args: Any, options: Any) -> Any:
        calls(name)
        return originals[name](*args, **options)

    builtins._mutants_called = called  # type: ignore[attr-defined]
    for function, mutants in _functions:
        name = f"{function.__module__}.{mutants['_mutmut_orig'].__name__.partition('__mutmut_')[0]}"
        originals[name] = types.FunctionType(
            function.__code__, function.__globals__, function.__name__, function.__defaults__, function.__closure__
        )
        originals[name].__kwdefaults__ = function.__kwdefaults__
        stub = _method_stub() if function.__code__.co_freevars else _stub
        code = stub.__code__
        function.__code__ = code.replace(co_consts=tuple(name if each == "NAME" else each for each in code.co_consts))


def _stub(*args: Any, **options: Any) -> Any:
    return _mutants_called("NAME", args, options)  # type: ignore[name-defined]  # noqa: F821 - a builtin


def _method_stub() -> Any:
    """The same for a method that uses `super`."""
    __class__ = None

    def stub(*args: Any, **options: Any) -> Any:
        __class__  # noqa: B018 - a cell, as that method has
        return _mutants_called("NAME", args, options)  # type: ignore[name-defined]  # noqa: F821 - a builtin

    return stub


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool:
    """Does what todo.json asks for."""
    task = json.loads(Path("todo.json").read_text())
    items = {item.nodeid: item for item in session.items}
    known = json.loads(_TESTS.read_text()) if _TESTS.exists() else {}
    changed = {name: item for name, item in items.items() if known.get(name, {}).get("written") != _written(item)}
    print(f"recording what {len(changed)} of {len(items)} tests call", flush=True)
    if changed:
        pid, starter = _starter(recording=True)
        if _wait({_fork(_record, session, list(changed.values()), known, starter): time.monotonic() + 3600})[1]:
            raise pytest.UsageError("a test fails without a mutant")
        _kill(pid)
        known = json.loads(_TESTS.read_text())
    tests: defaultdict[str, list[pytest.Item]] = defaultdict(list)
    for name, item in sorted(items.items(), key=lambda each: known[each[0]]["seconds"]):
        for function in known[name]["calls"]:
            tests[function].append(item)
    seconds = {name: test["seconds"] for name, test in known.items()}
    _run_all(session, task["mutants"], task["seconds"], tests, seconds)
    return True


def _run_all(
    session: pytest.Session,
    todo: list[str],
    limit: float,
    tests: dict[str, list[pytest.Item]],
    seconds: dict[str, float],
) -> None:
    os.chdir("..")
    files = {str(path): SourceFileMutationData(path=path) for path in walk_mutatable_files()}
    owner: dict[str, SourceFileMutationData] = {}
    for file in files.values():
        file.load()
        owner |= dict.fromkeys(file.exit_code_by_key, file)
    os.chdir("mutants")
    gc.collect()
    gc.freeze()
    running: dict[int, tuple[str, float, tuple[int, socket.socket]]] = {}
    # Each starts servers for one fork at a time.
    starters = [_starter() for _ in range(_WORKERS)]
    noticed: dict[str, str] = {}
    began, done = time.monotonic(), 0

    def finish() -> None:
        nonlocal done
        pid, status = _wait({pid: deadline for pid, (_, deadline, _) in running.items()})
        name, _, starter = running.pop(pid)
        if (by := _TEMPORARY / str(pid) / "noticed-by").exists():
            noticed[name] = by.read_text()
            Path("noticed.json").write_text(json.dumps(noticed, indent=1))
        shutil.rmtree(_TEMPORARY / str(pid), ignore_errors=True)
        if status == _TIMED_OUT:
            _kill(starter[0])
            starter = _starter()
        starters.append(starter)
        owner[name].exit_code_by_key[name] = status
        done += 1
        if done % 20 == 0:
            _save(files)
            print(f"{done} of {len(todo)} after {time.monotonic() - began:.0f} s", flush=True)

    # A run that is cut short has tried a sample.
    random.Random(1).shuffle(todo)
    for name in todo:
        function = name.partition("__mutmut_")[0]
        chosen = _chosen(function, tests.get(function, []), seconds, limit)
        if not chosen:
            owner[name].exit_code_by_key[name] = _UNTESTED
            done += 1
            continue
        while len(running) >= _WORKERS:
            finish()
        patience = 20.0 + 5.0 * sum(seconds[item.nodeid] for item in chosen)
        starter = starters.pop()
        running[_fork(_try, session, chosen, name, starter[1])] = name, time.monotonic() + patience, starter
    while running:
        finish()
    for pid, _ in starters:
        _kill(pid)
    _save(files)
    Path("noticed.json").write_text(json.dumps(noticed, indent=1))


def _save(files: dict[str, SourceFileMutationData]) -> None:
    os.chdir("..")
    for file in files.values():
        file.save()
    os.chdir("mutants")


def _fork(work: Callable[..., int], *arguments: Any) -> int:
    """A process that does this, in a group of its own; its exit status is what the work returns."""
    pid = os.fork()
    if pid:
        return pid
    status = _BROKEN
    try:
        os.setsid()
        status = work(*arguments)
    except BaseException:
        Path(f"broken-{os.getpid()}").write_text(traceback.format_exc())
        raise
    finally:
        os._exit(status)


def _kill(group: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)


def _starter(*, recording: bool = False) -> tuple[int, socket.socket]:
    """A process that starts servers, in milliseconds."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    # Forks have them all: none must be found unclosed by a test.
    _kept.extend((ours, theirs))
    return _fork(_serve, theirs, recording), ours


def _serve(requests: socket.socket, recording: bool) -> int:
    from wattwise_server.commands import serve  # noqa: PLC0415 - the mutated one

    main = serve.main
    # pytest's, which keep the server from setting up its own.
    logging.getLogger().handlers.clear()

    def with_mutant(argv: Sequence[str] | None = None) -> int:
        if recording:
            _record_calls(_Recorder())
        else:
            _activate(os.environ["MUTANT_UNDER_TEST"])
        return main(argv)

    serve.main = with_mutant
    status = forking.serve_requests(requests)
    sys.stdout.flush()
    sys.stderr.flush()
    return status


class _Recorder:
    """What a server calls goes into a file, from which the test's process reads it."""

    def __init__(self) -> None:
        self._file = os.open(_CALLS, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        self._size = 0
        self._seen: set[str] = set()

    def __call__(self, name: str) -> None:
        # Each test begins with an empty file.
        if os.fstat(self._file).st_size < self._size:
            self._seen.clear()
        if name not in self._seen:
            self._seen.add(name)
            os.write(self._file, f"{name}\n".encode())
        self._size = os.fstat(self._file).st_size


def _wait(limits: dict[int, float]) -> tuple[int, int]:
    """The process that ended first, or is over its limit, and its status; nothing that it started is left."""
    while True:
        for pid, limit in limits.items():
            found, status = os.waitpid(pid, os.WNOHANG)
            late = not found and time.monotonic() > limit
            if found or late:
                _kill(pid)
                if late:
                    os.waitpid(pid, 0)
                if not late and os.waitstatus_to_exitcode(status) == _BROKEN:
                    raise pytest.UsageError(Path(f"broken-{pid}").read_text())
                return pid, _TIMED_OUT if late else _SURVIVED if status == 0 else _NOTICED
        time.sleep(0.004)


def _try(session: pytest.Session, items: list[pytest.Item], name: str, starter: socket.socket) -> int:
    """Runs tests with a mutant until one fails."""
    _activate(name)
    forking.parent = lambda: starter  # type: ignore[assignment]
    folder = _own_folder(session)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    for item, following in zip(items, [*items[1:], None], strict=True):
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        if session.testsfailed:
            (folder / "noticed-by").write_text(item.nodeid)
            # Servers are not in this process group.
            session._setupstate.teardown_exact(None)
            return 1
    return 0


def _record(session: pytest.Session, items: list[pytest.Item], known: dict[str, Any], starter: socket.socket) -> int:
    """Runs tests without a mutant; writes what each calls and how long it takes."""
    _own_folder(session)
    calls: set[str] = set()
    _record_calls(calls.add)
    forking.parent = lambda: starter  # type: ignore[assignment]
    for item, following in zip(items, [*items[1:], None], strict=True):
        _CALLS.write_text("")
        calls.clear()
        began = time.monotonic()
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        if session.testsfailed:
            print(item.nodeid, "fails without a mutant", flush=True)
            break
        seconds = time.monotonic() - began
        known[item.nodeid] = {
            "calls": sorted(calls | set(_CALLS.read_text().split())),
            "seconds": seconds,
            "written": _written(item),
        }
    _TESTS.write_text(json.dumps(known))
    return session.testsfailed


def _chosen(function: str, items: list[pytest.Item], seconds: dict[str, float], limit: float) -> list[pytest.Item]:
    """Some of the tests that call a function: those whose names have words of its first, then quick ones."""
    rarity = Counter(word for item in items for word in _words(item.nodeid))
    words = _words(function.partition(".")[2])

    def unlike(item: pytest.Item) -> float:
        return -sum(1 / rarity[word] for word in words & _words(item.nodeid))

    alike = sorted(items, key=unlike)
    quick = [item for item in items if not _STARTS_SERVERS & set(getattr(item, "fixturenames", ()))]
    best = [*alike[:4], *quick[:4]]
    some = [*best, *_within(limit, quick, seconds), *_within(limit, alike, seconds)]
    return list({item.nodeid: item for item in some}.values())


def _words(name: str) -> set[str]:
    return {word.rstrip("s") for word in re.findall("[a-z]+", re.sub("([A-Z])", " \\1", name).lower())}


def _within(limit: float, items: list[pytest.Item], seconds: dict[str, float]) -> Iterator[pytest.Item]:
    """The first tests that together take no longer."""
    for item in items:
        limit -= seconds[item.nodeid]
        if limit < 0:
            return
        yield item


def _written(item: pytest.Item) -> float:
    return item.path.stat().st_mtime
