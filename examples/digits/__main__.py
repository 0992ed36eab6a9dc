"""The demo: starts one server, or two on a PostgreSQL, and the web page, runs the recurring job, prints the savings."""

from __future__ import annotations

import argparse
import shlex
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from rich.console import Console
from wattwise import Client
from wattwise.errors import WattwiseError
from wattwise.presentation.sentences import answer
from wattwise.rpc import v1
from wattwise.streams import run_command

from examples.digits.job import PREFIX
from examples.digits.monitor import energy_monitor
from examples.digits.processes import StoppedError, stop_on_signals
from examples.digits.recurrence import DemoLaunch, RecurringJob
from examples.digits.saving import report
from examples.digits.servers import FILE, Servers, one_on_sqlite, two_on_postgres, web_page
from examples.digits.table import DemoTable

BATCH_SIZES = (8, 16, 32, 64, 128, 256, 512, 1024)
DEFAULT = 16


@dataclass(frozen=True)
class Plan:
    """The number of recurrences, the number of runs with the default batch size, and the seed of both."""

    recurrences: int
    baseline_runs: int
    seed: int

    def seed_of(self, run: int) -> int:
        """Returns the seed of a recurrence or baseline run; plans with different seeds share none."""
        return self.seed * 10_000 + run


def demonstrate(servers: Servers, table: DemoTable, plan: Plan, page: str) -> None:
    """Runs the recurring job, and now and then its default batch size, and prints the savings.

    Of several servers one is killed in mid-run. The URL of the page is empty if there is none.
    """
    server, several = servers.address, len(servers.processes) > 1
    monitor = energy_monitor()
    kind = "the processor's RAPL counters" if monitor.kind == "rapl" else f"an estimate (not measured), {monitor!r}"
    where = f"Servers: {server.replace(',', ' and ')}, on one PostgreSQL" if several else f"Server: {server}"
    table.say(f"{where}. Energy: {kind}.")
    if page:
        table.say(f"Watch it get cheaper: {page}job?id={PREFIX}-nightly")
    table.say(f"Batch sizes {', '.join(map(str, BATCH_SIZES))}; default batch size {DEFAULT}.")
    with Client(server) as client, table.shown():
        halfway = partial(_kill_one, servers, table) if several else None
        launches, baseline = train_again_and_again(client, server, table, plan, halfway)
        after = _after_the_kill(client) if several else ()
        saved = _saved(client)
    for line in (*report(launches, baseline, kind), *after, saved):
        table.say(line)


def _saved(client: Client) -> str:
    """Returns what the server's statistics claim, which is less than a comparison of the means would show."""
    job_id = f"{PREFIX}-nightly"
    factors = client.get_server_info().factors
    known = client.get_job(job_id)
    found = answer(known.job, known.details, client.get_job_statistics(job_id), factors)
    return f"{job_id}: {found.brief}"


def _kill_one(servers: Servers, table: DemoTable) -> None:
    killed, *others = servers.kill_one(), *servers.address.split(",")[1:]
    table.say(
        f"Killed the server {killed} while a trial was running. Both servers kept everything in one PostgreSQL: "
        f"{others[0]} goes on with the same jobs, and trainers move to it."
    )


def _after_the_kill(client: Client) -> Sequence[str]:
    """Returns what became of all trials."""
    jobs = list(client.jobs(job_id_prefix=PREFIX))
    trials = [trial for row in jobs for trial in client.trials(row.job.spec.job_id)]
    lost = sum(trial.end_reason == v1.END_REASON_LOST for trial in trials)
    return (f"One of two servers was killed in mid-run: of {len(trials)} trials {lost or 'none'} got lost.",)


def train_again_and_again(
    client: Client, server: str, table: DemoTable, plan: Plan, halfway: Callable[[], None] | None = None
) -> tuple[list[DemoLaunch], list[DemoLaunch]]:
    """Returns the launches for which the server chose, and those that compare with the default batch size.

    `halfway` is called while a trial of the middle recurrence runs.
    """
    job = RecurringJob(client, server, f"{PREFIX}-nightly", _sizes(*BATCH_SIZES))
    launches: list[DemoLaunch] = []
    baseline: list[DemoLaunch] = []
    baseline_runs = 0
    for recurrence in range(1, plan.recurrences + 1):
        during = halfway if recurrence == plan.recurrences // 2 + 1 else None
        for launch in job.recur(recurrence, plan.seed_of(recurrence), during):
            launches.append(launch)
            table.add(launch)
        # Evenly distributed, so that a slower machine affects both.
        while baseline_runs * plan.recurrences < recurrence * plan.baseline_runs:
            baseline_runs += 1
            for launch in job.recur(baseline_runs, plan.seed_of(plan.recurrences + baseline_runs), baseline=True):
                baseline.append(launch)
                table.add_baseline(launch)
    return launches, baseline


def _sizes(*sizes: int) -> tuple[str, ...]:
    return ("--batch-sizes", *map(str, sizes), "--default", str(DEFAULT))


def run(
    table: DemoTable,
    serving: AbstractContextManager[Servers],
    plan: Plan,
    *,
    with_page: bool,
    page_log: Path | None = None,
) -> int:
    """Runs the demo on these servers; returns the exit status."""
    try:
        with serving as servers, web_page(servers.address, log=page_log) if with_page else nullcontext("") as page:
            demonstrate(servers, table, plan, page)
            if page and sys.stdin.isatty() and sys.stdout.isatty():
                stay(table, page)
    except StoppedError as stopped:
        table.say(f"{stopped}; the trainer and the server have ended")
        return stopped.status
    except (RuntimeError, WattwiseError) as error:
        table.say(str(error))
        return 1
    return 0


def stay(table: DemoTable, page: str) -> None:
    """Keeps the page until Ctrl-C."""
    table.say(f"The page stays at {page} until Ctrl-C.")
    with suppress(StoppedError):
        signal.pause()


def arguments() -> argparse.Namespace:
    """Returns the command-line arguments."""
    parser = argparse.ArgumentParser(prog="python -m examples.digits", description=__doc__)
    parser.add_argument("--recurrences", type=int, default=40, help="number of recurrences (default: 40)")
    parser.add_argument("--baseline-runs", type=int, default=8, help="runs of the default batch size (default: 8)")
    parser.add_argument("--seed", type=int, default=0, help="seed of data splits, weights and data order (default: 0)")
    parser.add_argument(
        "--keep", type=Path, metavar="FOLDER", help="keep the database and the logs in this folder; only with sqlite"
    )
    parser.add_argument("--no-page", action="store_true", help="do not start the web page")
    parser.add_argument(
        "--database",
        choices=("sqlite", "postgres"),
        default="sqlite",
        help="postgres: two servers on a PostgreSQL of the demo's own, of which one is killed in mid-run "
        "(default: sqlite, one server)",
    )
    args = parser.parse_args()
    if args.recurrences < 1 or args.baseline_runs < 1:
        parser.error("--recurrences and --baseline-runs take 1 or more")
    if not 0 <= args.seed <= 9999:
        parser.error("--seed takes 0 to 9999")
    if args.keep and args.database != "sqlite":
        parser.error("--keep is for --database sqlite; a PostgreSQL of the demo is deleted at its end")
    if args.keep and (args.keep / FILE).exists():
        parser.error(f"{args.keep / FILE} exists already; choose another folder")
    return args


def main() -> int:
    """Reads the arguments and runs the demo."""
    args = arguments()
    table = DemoTable(Console())
    plan = Plan(args.recurrences, args.baseline_runs, args.seed)
    stop_on_signals()
    if args.database == "postgres":
        return run(table, two_on_postgres(), plan, with_page=not args.no_page)
    if args.keep is None:
        with tempfile.TemporaryDirectory(prefix="wattwise-demo-") as name:
            status = run(table, one_on_sqlite(Path(name)), plan, with_page=not args.no_page)
        table.say("The database was temporary: `make demo KEEP=folder` keeps it, to look at it with `wattwise jobs`.")
        return status
    folder = args.keep.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    serving = one_on_sqlite(folder, log=folder / "server.log")
    status = run(table, serving, plan, with_page=not args.no_page, page_log=folder / "web.log")
    for line in kept(folder):
        table.say(line)
    return status


def kept(folder: Path) -> Iterator[str]:
    """Yields how to look at what a folder keeps."""
    wattwise = shlex.quote(str(Path(sys.executable).with_name("wattwise")))
    yield f"The database and the logs are kept in {folder}. To look at them, start the server again:"
    yield f"  {wattwise} serve --database {shlex.quote(f'sqlite:///{folder / FILE}')}"
    yield "and in another terminal:"
    for command in (f"jobs show {PREFIX}-nightly", f"jobs trials {PREFIX}-nightly", "web"):
        yield f"  {wattwise} {command}"


if __name__ == "__main__":
    sys.exit(run_command("demo", sys.argv[1:], lambda _: main()))
