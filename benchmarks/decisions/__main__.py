"""Prints the table of decisions: what the policies cost beside the best possible, and whether limits are met.

    python -m benchmarks.decisions --traces DIR

Exits with 1 if the first policy misses a limit.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from wattwise_replay.compare import POLICIES
from wattwise_replay.errors import ReplayError
from wattwise_replay.tables import counted

from benchmarks.decisions.cases import NOWHERE, Folders, add_options, folders_of
from benchmarks.decisions.playing import Setup, contenders, play_all
from benchmarks.decisions.report import earlier_ratios, lines, print_details, print_lines, print_worse, write
from benchmarks.decisions.rows import REAL, Row, playable, rows, seeds_of
from benchmarks.decisions.scores import MAX_TRIES, SEEDS

_JUDGED = "knowledge_gradient"
_USUAL = (_JUDGED, *(policy for policy in POLICIES if policy != _JUDGED))
_QUICK_SEEDS = 3
_SLOW = ("humps",)
"""Groups that a quick table leaves out."""


def main(words: Sequence[str] | None = None) -> int:
    """Plays all rows and prints the table; returns 1 if a limit is missed."""
    args = _parser().parse_args(words)
    folders = folders_of(args)
    setup = Setup(folders, tuple(args.policy or _USUAL), args.variants)
    seeds = args.seeds or (_QUICK_SEEDS if args.quick else SEEDS)
    try:
        _check_writable(args.json)
        earlier = earlier_ratios(args.baseline) if args.baseline else {}
        names = list(contenders(setup))
        chosen, left_out = playable(_chosen(args, folders), folders)
        scores = play_all(setup, seeds_of(chosen, seeds), names, args.processes)
    except ReplayError as error:
        print(f"decisions: {error}", file=sys.stderr)
        return 1
    found = list(lines(chosen, scores, seeds, earlier))
    if args.json:
        write(args.json, found, scores, seeds)
    print(_explanation(seeds))
    print_lines(found)
    if args.details:
        print_details(scores)
    print_worse(found)
    print(*_unmeasured_defaults(chosen, folders), left_out, sep="\n", end="\n" if left_out else "")
    return int(any(line.met is False for line in found if line.contender == names[0]))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.decisions",
        description="Print what the policies cost beside the best batch size in hindsight, and whether limits are met.",
    )
    add_options(parser)
    parser.add_argument(
        "--policy",
        choices=POLICIES,
        action="append",
        help=f"repeatable; the first is judged (default: all, {_JUDGED} first)",
    )
    parser.add_argument(
        "--variants",
        metavar="MODULE:NAME",
        help="a mapping from names to callables that create a policy, such as one for each constant switched off",
    )
    groups = dict.fromkeys([*(row.group for row in rows(NOWHERE)), REAL])
    parser.add_argument("--rows", choices=groups, action="append", help="rows to play; repeatable (default: all)")
    parser.add_argument(
        "--seeds", type=int, metavar="K", help=f"from 0 (default: {SEEDS}; with --quick {_QUICK_SEEDS})"
    )
    parser.add_argument("--quick", action="store_true", help="few seeds, and few cases of each row")
    parser.add_argument("--details", action="store_true", help="print each case as well")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything, with each case and seed")
    parser.add_argument(
        "--baseline", type=Path, metavar="FILE", help="what --json wrote earlier; cases that are worse now are named"
    )
    return parser


def _check_writable(path: Path | None) -> None:
    """Refuses a file that cannot be written before the cases are played."""
    try:
        if path is not None:
            path.touch()
    except OSError as error:
        raise ReplayError(f"cannot write {path}: {error.strerror}") from error


def _chosen(args: argparse.Namespace, folders: Folders) -> Sequence[Row]:
    wanted = [row for row in rows(folders) if args.rows is None or row.group in args.rows]
    if not args.quick:
        return wanted
    return [row.quick() for row in wanted if args.rows or row.group not in _SLOW]


def _unmeasured_defaults(chosen: Sequence[Row], folders: Folders) -> Iterator[str]:
    """Notes about settings whose default batch size was not measured."""
    for name, case in {case.workload: case for row in chosen for case in row.cases if case.needs == "traces"}.items():
        workload = case.load(folders)
        if workload.unmeasured_default is not None:
            yield (
                f"{name}: the default batch size {workload.unmeasured_default} was not measured; "
                f"{workload.default_batch_size} replaces it."
            )


def _explanation(seeds: int) -> str:
    return f"""\
Total cost ÷ cost of the best batch size in hindsight, mean over {counted(seeds, "seed")}: geometric mean over a row's
cases (worst case), after the first 5, 10 and 40 recurrences and over all. If a workload changes, the best batch
size changes with it. A recurrence ends after {MAX_TRIES} trials. Without a model it counts at least {MAX_TRIES} times
the best.
  lose > 15%    seeds of all cases that cost more than 1.15 of the best
  stuck         seeds whose most used batch size of the last 20 recurrences costs over 1.15 of the best
  launches      for each delivered model
  no model      recurrences without a model
  alarms a job  changes of the workload that the policy has noticed"""


if __name__ == "__main__":
    sys.exit(main())
