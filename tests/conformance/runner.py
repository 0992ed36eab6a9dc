"""The process of a client's runner, which makes calls and prints what it observed of each one."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import tempfile
from collections.abc import Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from google.protobuf.json_format import MessageToDict, ParseDict, ParseError
from google.protobuf.message import Message
from wattwise import v1

from tests.conformance.refusal import MismatchError, Refused, compare
from tests.conformance.replay import Replay, check_keys

LIMIT = 60.0
"""Seconds that a call may take with all its retries."""
LONGEST_LINE = 2**24

Scenario = tuple[str, str]
"""File and name of a scenario."""


class Outcome(NamedTuple):
    """The outcome of a scenario in one language."""

    how: str
    why: str


class RunnerError(Exception):
    """The runner broke its contract; the message says how."""


class UnsupportedError(Exception):
    """The client lacks what a scenario needs; the message says what."""


class Runner:
    """A runner as a way of calling the server.

    A process that breaks the contract is killed, and the next call starts another one.
    """

    def __init__(self, command: Sequence[str | Path], server: str) -> None:
        self.process: asyncio.subprocess.Process | None = None
        self._command = [*command, "--server", server]
        self._ids = itertools.count(1)
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - `close` closes it

    async def call(self, method: str, request: Message) -> Any:
        """Makes a call."""
        answer = await self.ask(method, request=MessageToDict(request))
        return message_of(answer, getattr(v1, f"{method}Response")())

    async def open(self) -> RunnerStream:
        """Opens a stream."""
        number = next(self._ids)
        await self.ask("stream.open", stream=number)
        return RunnerStream(self, number)

    async def ask(self, call: str, **arguments: Any) -> Any:
        """Returns the answer that the runner observed.

        Raises:
            Refused: the runner observed an error.
            RunnerError: the runner broke its contract.
            UnsupportedError: the client lacks this call.
        """
        number = next(self._ids)
        try:
            line = await self.exchange(json.dumps({"id": number, "call": call, **arguments}))
            kind, observed = observation(line, number)
        except BaseException:
            # The answer may still arrive, and would be taken for that of the next call.
            await self._kill()
            raise
        if kind == "unsupported":
            raise UnsupportedError(observed)
        if kind == "error":
            raise observed
        return observed

    async def close(self) -> None:
        """Ends the process.

        Raises:
            RunnerError: the runner did not exit with 0, or printed a line too many.
        """
        with self._errors:
            if self.process is None:
                return
            process, self.process = self.process, None
            rest, _ = await asyncio.wait_for(process.communicate(b""), LIMIT)
            if rest or process.returncode:
                raise RunnerError(f"exited with {process.returncode} after {rest[-500:]!r}: {self._tail()}")

    async def exchange(self, line: str) -> bytes:
        """Writes a line to the process, and returns the line that it prints."""
        if self.process is None:
            self.process = await asyncio.create_subprocess_exec(
                *self._command,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=self._errors,
                limit=LONGEST_LINE,
            )
        process = self.process
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(line.encode() + b"\n")
            await process.stdin.drain()
            observed = await asyncio.wait_for(process.stdout.readline(), LIMIT)
        except asyncio.TimeoutError:
            raise RunnerError(f"printed nothing within {LIMIT:g} s after {line}") from None
        except ConnectionError:
            observed = b""
        if not observed:
            raise RunnerError(f"exited with {await process.wait()} after {line}: {self._tail()}")
        return observed

    async def _kill(self) -> None:
        if self.process is not None:
            process, self.process = self.process, None
            if process.returncode is None:
                process.kill()
            await process.wait()

    def _tail(self) -> str:
        size = self._errors.seek(0, os.SEEK_END)
        self._errors.seek(max(0, size - 2000))
        return self._errors.read().decode(errors="replace")


class RunnerStream:
    """A stream that a runner holds open."""

    def __init__(self, runner: Runner, number: int) -> None:
        self._runner = runner
        self._process = runner.process
        self._number = number

    async def ask(self, call: str, **arguments: Any) -> Any:
        """Returns the answer that the runner observed."""
        return await self._runner.ask(call, stream=self._number, **arguments)

    async def send(self, request: v1.StreamResultsRequest) -> None:
        """Sends a message."""
        await self.ask("stream.send", request=MessageToDict(request))

    async def receive(self) -> v1.StreamResultsResponse | None:
        """Waits for the next message."""
        answer = await self.ask("stream.receive")
        return None if answer is None else message_of(answer, v1.StreamResultsResponse())

    async def close(self) -> None:
        """Closes the sending side."""
        await self.ask("stream.close")

    async def cancel(self) -> None:
        """Cancels the stream, unless it ended with its process."""
        if self._runner.process is self._process:
            await self.ask("stream.cancel")


def observation(line: bytes, number: int) -> tuple[str, Any]:
    """Returns the kind of an observation, and the answer, the error or the text.

    Raises:
        RunnerError: the line is not an observation of the call with this number.
    """
    try:
        observed = json.loads(line)
        if observed.pop("id") != number:
            raise RunnerError(f"answered another call than {number}: {line!r}")
        ((kind, value),) = observed.items()
        if kind == "error":
            reason, status, fields, metadata = (value[name] for name in ("reason", "status", "fields", "metadata"))
            return kind, Refused(reason, status, list(fields), dict(metadata))
    except (ValueError, KeyError, TypeError, AttributeError):
        raise RunnerError(f"printed no observation: {line[:500]!r}") from None
    if kind not in ("answer", "unsupported"):
        raise RunnerError(f"printed an unknown kind of observation: {line[:500]!r}")
    return kind, value


def message_of(answer: Any, message: Message) -> Any:
    """Returns the message whose proto3 JSON a runner printed.

    Raises:
        RunnerError: the answer is not JSON of this message.
    """
    try:
        return ParseDict(answer, message)
    except (ParseError, TypeError, AttributeError) as error:
        raise RunnerError(f"printed an answer that is no {message.DESCRIPTOR.name}: {error}") from None


async def replay_tables(language: str, runner: Runner, tables: Sequence[Path]) -> dict[Scenario, Outcome]:
    """Replays tables through a runner.

    Raises:
        RunnerError: the runner failed as it ended.
    """
    run_id = f"{language}-{os.urandom(3).hex()}"
    outcomes = {}
    for table in tables:
        for number, scenario in enumerate(yaml.safe_load(table.read_text())):
            if "state" in scenario:
                replay = replay_states(scenario, runner)
            else:
                replay = Replay(scenario, runner, f"{run_id}-{table.stem}-{number}").run()
            outcomes[table.name, scenario["name"]] = await outcome_of(replay)
    await runner.close()
    return outcomes


async def replay_states(scenario: Mapping[str, Any], runner: Runner) -> None:
    """Compares the state after each event with the table of a trial's states.

    Raises:
        MismatchError: at the first difference.
    """
    check_keys(scenario, {"name", "state", "then"})
    for event, expected in scenario["then"].items():
        observed = await runner.ask("state.after", request={"state": scenario["state"], "event": event})
        compare(f"the state after {event}", observed, expected)


async def outcome_of(replay: Coroutine[Any, Any, None]) -> Outcome:
    """Awaits the replay of a scenario."""
    try:
        await replay
    except UnsupportedError as error:
        return Outcome("left out", str(error))
    except MismatchError as mismatch:
        return Outcome("failed", str(mismatch))
    except Exception as error:  # noqa: BLE001 - the other scenarios continue
        return Outcome("failed", f"{type(error).__name__}: {error}")
    return Outcome("passed", "")
