"""The demo: starts a server, lets the job recur, and says what that gave."""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from wattwise import Client

from examples.digits.recurrence import Launch, RecurringJob
from examples.digits.saving import report
from examples.digits.table import Board
from examples.digits.train import PREFIX, energy_meter

BATCH_SIZES = (8, 16, 32, 64, 128, 256, 512, 1024)
DEFAULT = 16


@contextmanager
def serving(folder: Path) -> Iterator[str]:
    """A server on a free port with a fresh file; yields its address."""
    command = [sys.executable, "-m", "wattwise_server", "--address", "127.0.0.1:0", "--log-level", "warning"]
    command += ["--database", f"sqlite:///{folder / 'wattwise.db'}"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            if server.stdout is None or not (line := server.stdout.readline()):
                raise SystemExit("the server did not start; what it wrote above says why")
            yield line.split()[-1]
        finally:
            server.terminate()


def demonstrate(server: str, board: Board, recurrences: int, baseline_runs: int) -> None:
    """Lets the job recur, and the default batch size beside it, and prints the saving."""
    meter = energy_meter()
    kind = "the processor's RAPL counters" if meter.kind == "rapl" else f"an estimate, not measured: {meter!r}"
    board.say(f"The server listens on {server}. Energy by {kind}.")
    board.say(f"Batch sizes {', '.join(map(str, BATCH_SIZES))}; the default, as somebody once chose it, is {DEFAULT}.")
    launches: list[Launch] = []
    baseline: list[Launch] = []
    with Client(server) as client, board.shown():
        sizes = ("--batch-sizes", *map(str, BATCH_SIZES), "--default", str(DEFAULT))
        job = RecurringJob(client, server, f"{PREFIX}-nightly", sizes)
        alone = ("--batch-sizes", str(DEFAULT), "--default", str(DEFAULT), "--no-early-stopping")
        default = RecurringJob(client, server, f"{PREFIX}-default", alone)
        for recurrence in range(1, recurrences + 1):
            for launch in job.recur(recurrence, seed=recurrence):
                launches.append(launch)
                board.add(launch)
            # Spread evenly among the others, so that a machine that slows down slows both.
            if len(baseline) * recurrences < recurrence * baseline_runs:
                baseline += default.recur(len(baseline) + 1, seed=recurrence)
    for line in report(launches, baseline, kind):
        board.say(line)


def main() -> int:
    """Reads the arguments and runs the demo."""
    parser = argparse.ArgumentParser(prog="python -m examples.digits", description=__doc__)
    parser.add_argument("--recurrences", type=int, default=40, help="how often the job recurs (default: 40)")
    parser.add_argument("--baseline-runs", type=int, default=8, help="runs of the default batch size (default: 8)")
    parser.add_argument("--keep", type=Path, help="folder to keep the server's file in, for `wattwise serve`")
    args = parser.parse_args()
    if args.recurrences < 1 or args.baseline_runs < 1:
        parser.error("at least one recurrence and one baseline run are needed")
    board = Board(Console())
    with tempfile.TemporaryDirectory(prefix="wattwise-demo-") as name:
        folder = args.keep or Path(name)
        folder.mkdir(parents=True, exist_ok=True)
        try:
            with serving(folder) as server:
                demonstrate(server, board, args.recurrences, args.baseline_runs)
        except KeyboardInterrupt:
            return 130
        except RuntimeError as error:
            board.say(str(error))
            return 1
    if args.keep:
        board.say(f"Look at it: wattwise serve --database sqlite:///{folder / 'wattwise.db'}, then wattwise jobs list")
    return 0


if __name__ == "__main__":
    sys.exit(main())
