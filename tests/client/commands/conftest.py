"""The `wattwise` command in this process, against the real server."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest
from wattwise import v1
from wattwise.commands.main import main

from tests.live_server import LiveServer

Ask = Callable[..., str]


@pytest.fixture(autouse=True)
def address(grpc_server: LiveServer, monkeypatch: pytest.MonkeyPatch) -> str:
    """The server that every command finds in its environment."""
    monkeypatch.setenv("WATTWISE_SERVER", grpc_server.address)
    return grpc_server.address


@pytest.fixture
def ask(capsys: pytest.CaptureFixture[str]) -> Ask:
    """Runs `wattwise` with these arguments; returns its output. It must succeed without output on stderr."""

    def run(*words: str) -> str:
        assert main(words) == 0
        printed = capsys.readouterr()
        assert printed.err == ""
        return printed.out

    return run


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str]) -> Ask:
    """Runs `wattwise` with these arguments; returns its stderr. It must fail with this status."""

    def run(*words: str, status: int) -> str:
        with pytest.raises(SystemExit) as left:
            sys.exit(main(words))
        assert left.value.code == status
        printed = capsys.readouterr()
        assert printed.out == ""
        return printed.err

    return run


@pytest.fixture
def stub(grpc_stub: v1.BatchSizeOptimizerStub) -> v1.BatchSizeOptimizerStub:
    """The RPCs of trainers."""
    return grpc_stub


def row(shown: str, first: str, column: str = "") -> list[str]:
    """The cells of the line that starts with this one, in the table with this column; two spaces separate cells."""
    table = next(part for part in shown.split("\n\n") if column in part) if column else shown
    (line,) = (
        line for line in table.splitlines() if line.split("  ")[0].strip() == first or line.split()[:1] == [first]
    )
    return [cell.strip() for cell in line.split("  ") if cell.strip()]


def records(tsv: str) -> list[dict[str, str]]:
    """The rows of a table in the format tsv, with the names of its first line."""
    names, *rows = (line.split("\t") for line in tsv.splitlines())
    return [dict(zip(names, cells, strict=True)) for cells in rows]
