"""The demo: starts a server, lets the job recur, and says what that gave."""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from wattwise import Client, WattwiseError

from examples.digits.processes import StoppedError, child, stop_on_signals
from examples.digits.recurrence import Launch, RecurringJob
from examples.digits.saving import report
from examples.digits.table import Board
from examples.digits.train import PREFIX, energy_monitor

BATCH_SIZES = (8, 16, 32, 64, 128, 256, 512, 1024)
DEFAULT = 16
FILE = "wattwise.db"


@dataclass(frozen=True)
class Plan:
    """How often the job recurs, how often the default batch size is run beside it, and with which chance."""

    recurrences: int
    baseline_runs: int
    seed: int

    def seed_of(self, run: int) -> int:
        """The seed of a numbered recurrence or baseline run; no two plans of different seeds share one."""
        return self.seed * 10_000 + run


@contextmanager
def serving(folder: Path) -> Iterator[str]:
    """A server on a free port with a fresh file; yields its address."""
    arguments = ("--address", "127.0.0.1:0", "--database", f"sqlite:///{folder / FILE}", "--log-level", "warning")
    with child("wattwise_server", *arguments) as server:
        if server.stdout is None or not (line := server.stdout.readline()):
            raise RuntimeError("the server did not start; what it wrote above says why")
        yield line.split()[-1]


def demonstrate(server: str, board: Board, plan: Plan) -> None:
    """Lets the job recur, and the default batch size beside it, and prints the saving."""
    monitor = energy_monitor()
    kind = "the processor's RAPL counters" if monitor.kind == "rapl" else f"an estimate, not measured: {monitor!r}"
    board.say(f"The server listens on {server}. Energy by {kind}.")
    board.say(f"Batch sizes {', '.join(map(str, BATCH_SIZES))}; the default, as somebody once chose it, is {DEFAULT}.")
    with Client(server) as client, board.shown():
        launches, baseline = train_again_and_again(client, server, board, plan)
    for line in report(launches, baseline, kind):
        board.say(line)


def train_again_and_again(client: Client, server: str, board: Board, plan: Plan) -> tuple[list[Launch], list[Launch]]:
    """All launches of the job, and those of the default batch size under a job of its own."""
    job = RecurringJob(client, server, f"{PREFIX}-nightly", _sizes(*BATCH_SIZES))
    default = RecurringJob(client, server, f"{PREFIX}-default", (*_sizes(DEFAULT), "--no-early-stopping"))
    launches: list[Launch] = []
    baseline: list[Launch] = []
    measured = 0
    for recurrence in range(1, plan.recurrences + 1):
        for launch in job.recur(recurrence, plan.seed_of(recurrence)):
            launches.append(launch)
            board.add(launch)
        # Spread evenly among the others, so that a machine that slows down slows both.
        while measured * plan.recurrences < recurrence * plan.baseline_runs:
            measured += 1
            for launch in default.recur(measured, plan.seed_of(measured)):
                baseline.append(launch)
                board.add_baseline(launch)
    return launches, baseline


def _sizes(*sizes: int) -> tuple[str, ...]:
    return ("--batch-sizes", *map(str, sizes), "--default", str(DEFAULT))


def run(board: Board, folder: Path, plan: Plan) -> int:
    """The demo with its state in a folder; returns the exit status."""
    try:
        with serving(folder) as server:
            demonstrate(server, board, plan)
    except StoppedError as signalled:
        board.say(f"{signalled}; the trainer and the server have ended")
        return signalled.status
    except (RuntimeError, WattwiseError) as error:
        board.say(str(error))
        return 1
    return 0


def arguments() -> argparse.Namespace:
    """What was asked for."""
    parser = argparse.ArgumentParser(prog="python -m examples.digits", description=__doc__)
    parser.add_argument("--recurrences", type=int, default=40, help="how often the job recurs (default: 40)")
    parser.add_argument("--baseline-runs", type=int, default=8, help="runs of the default batch size (default: 8)")
    parser.add_argument("--seed", type=int, default=0, help="of the data splits, weights and data orders (default: 0)")
    parser.add_argument("--keep", type=Path, help="folder to keep the server's file in, for `wattwise serve`")
    args = parser.parse_args()
    if args.recurrences < 1 or args.baseline_runs < 1:
        parser.error("at least one recurrence and one baseline run are needed")
    if not 0 <= args.seed <= 9999:
        parser.error("--seed takes 0 to 9999")
    if args.keep and (args.keep / FILE).exists():
        parser.error(f"{args.keep / FILE} is there already, and the demo starts from nothing: name another folder")
    return args


def main() -> int:
    """Reads the arguments and runs the demo."""
    args = arguments()
    board = Board(Console())
    plan = Plan(args.recurrences, args.baseline_runs, args.seed)
    stop_on_signals()
    if args.keep is None:
        with tempfile.TemporaryDirectory(prefix="wattwise-demo-") as name:
            status = run(board, Path(name), plan)
        board.say("The server's file was temporary; with --keep FOLDER `wattwise jobs` can show what it holds.")
        return status
    args.keep.mkdir(parents=True, exist_ok=True)
    status = run(board, args.keep, plan)
    wattwise = Path(sys.executable).with_name("wattwise")
    board.say(
        f"Look at it: {wattwise} serve --database sqlite:///{args.keep / FILE}, and beside it {wattwise} jobs list"
    )
    return status


if __name__ == "__main__":
    sys.exit(main())
