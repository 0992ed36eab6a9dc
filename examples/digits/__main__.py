"""The demo: starts a server, runs the recurring job, and prints the savings."""

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

from examples.digits.job import PREFIX
from examples.digits.monitor import energy_monitor
from examples.digits.processes import StoppedError, child, stop_on_signals
from examples.digits.recurrence import DemoLaunch, RecurringJob
from examples.digits.saving import report
from examples.digits.table import DemoTable

BATCH_SIZES = (8, 16, 32, 64, 128, 256, 512, 1024)
DEFAULT = 16
FILE = "wattwise.db"


@dataclass(frozen=True)
class Plan:
    """The number of recurrences, the number of runs with the default batch size, and the seed of both."""

    recurrences: int
    baseline_runs: int
    seed: int

    def seed_of(self, run: int) -> int:
        """The seed of a recurrence or baseline run; plans with different seeds share none."""
        return self.seed * 10_000 + run


@contextmanager
def serving(folder: Path) -> Iterator[str]:
    """Runs a server on a free port with a new database; yields its address."""
    arguments = ("--address", "127.0.0.1:0", "--database", f"sqlite:///{folder / FILE}", "--log-level", "warning")
    with child("wattwise_server", *arguments) as server:
        if server.stdout is None or not (line := server.stdout.readline()):
            raise RuntimeError("the server did not start; see its output above")
        yield line.split()[-1]


def demonstrate(server: str, table: DemoTable, plan: Plan) -> None:
    """Runs the recurring job, and the default batch size beside it, and prints the savings."""
    monitor = energy_monitor()
    kind = "the processor's RAPL counters" if monitor.kind == "rapl" else f"an estimate (not measured), {monitor!r}"
    table.say(f"Server: {server}. Energy: {kind}.")
    table.say(f"Batch sizes {', '.join(map(str, BATCH_SIZES))}; default batch size {DEFAULT}.")
    with Client(server) as client, table.shown():
        launches, baseline = train_again_and_again(client, server, table, plan)
    for line in report(launches, baseline, kind):
        table.say(line)


def train_again_and_again(
    client: Client, server: str, table: DemoTable, plan: Plan
) -> tuple[list[DemoLaunch], list[DemoLaunch]]:
    """All launches of the job, and those of the default batch size, which is a separate job."""
    job = RecurringJob(client, server, f"{PREFIX}-nightly", _sizes(*BATCH_SIZES))
    default = RecurringJob(client, server, f"{PREFIX}-default", (*_sizes(DEFAULT), "--no-early-stopping"))
    launches: list[DemoLaunch] = []
    baseline: list[DemoLaunch] = []
    baseline_runs = 0
    for recurrence in range(1, plan.recurrences + 1):
        for launch in job.recur(recurrence, plan.seed_of(recurrence)):
            launches.append(launch)
            table.add(launch)
        # Evenly distributed, so that a slower machine affects both.
        while baseline_runs * plan.recurrences < recurrence * plan.baseline_runs:
            baseline_runs += 1
            for launch in default.recur(baseline_runs, plan.seed_of(baseline_runs)):
                baseline.append(launch)
                table.add_baseline(launch)
    return launches, baseline


def _sizes(*sizes: int) -> tuple[str, ...]:
    return ("--batch-sizes", *map(str, sizes), "--default", str(DEFAULT))


def run(table: DemoTable, folder: Path, plan: Plan) -> int:
    """Runs the demo with its state in a folder; returns the exit status."""
    try:
        with serving(folder) as server:
            demonstrate(server, table, plan)
    except StoppedError as stopped:
        table.say(f"{stopped}; the trainer and the server have ended")
        return stopped.status
    except (RuntimeError, WattwiseError) as error:
        table.say(str(error))
        return 1
    return 0


def arguments() -> argparse.Namespace:
    """The command-line arguments."""
    parser = argparse.ArgumentParser(prog="python -m examples.digits", description=__doc__)
    parser.add_argument("--recurrences", type=int, default=40, help="number of recurrences (default: 40)")
    parser.add_argument("--baseline-runs", type=int, default=8, help="runs of the default batch size (default: 8)")
    parser.add_argument("--seed", type=int, default=0, help="seed of data splits, weights and data order (default: 0)")
    parser.add_argument("--keep", type=Path, help="folder for the server's database, which is kept")
    args = parser.parse_args()
    if args.recurrences < 1 or args.baseline_runs < 1:
        parser.error("--recurrences and --baseline-runs take 1 or more")
    if not 0 <= args.seed <= 9999:
        parser.error("--seed takes 0 to 9999")
    if args.keep and (args.keep / FILE).exists():
        parser.error(f"{args.keep / FILE} exists already; choose another folder")
    return args


def main() -> int:
    """Reads the arguments and runs the demo."""
    args = arguments()
    table = DemoTable(Console())
    plan = Plan(args.recurrences, args.baseline_runs, args.seed)
    stop_on_signals()
    if args.keep is None:
        with tempfile.TemporaryDirectory(prefix="wattwise-demo-") as name:
            status = run(table, Path(name), plan)
        table.say("The database was temporary; keep it with --keep FOLDER to inspect it with `wattwise jobs`.")
        return status
    args.keep.mkdir(parents=True, exist_ok=True)
    status = run(table, args.keep, plan)
    wattwise = Path(sys.executable).with_name("wattwise")
    table.say(
        f"Inspect the result: {wattwise} serve --database sqlite:///{args.keep / FILE}, then {wattwise} jobs list"
    )
    return status


if __name__ == "__main__":
    sys.exit(main())
