"""`make bench`: every measurement with its baseline and target, as a table and as JSON."""

from __future__ import annotations

import argparse
import json
import platform
import sqlite3
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

import grpc
from wattwise import v1

from benchmarks import attacks, choice, moves, pause, postgres, readers
from benchmarks.figures import Figure, Samples, medians, ratio
from benchmarks.filling import TRIALS, fill, job_id
from benchmarks.processes import client, echo_server, resident_megabytes, wattwise_server
from benchmarks.victim import trainer
from tests.web.browser import CHROMIUM

_SECTIONS = ("calls", "size", "wide", "choice", "import", "attacks", "postgres", "moves", "page")
_WIDE_JOBS, _WIDE_RUNNING, _WIDE_SIZES = 2_000, 5, range(8, 72)
_IDLE_SECONDS = 5


def main() -> None:
    """Measures, prints and writes."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description="Measures the server against its baselines."
    )
    parser.add_argument("--only", choices=_SECTIONS, nargs="+", default=_SECTIONS, help="what to measure")
    parser.add_argument("--rounds", type=int, default=20, help="rounds of each comparison")
    parser.add_argument("--jobs", type=int, default=100_000, help="jobs in the large file, each of ten trials")
    parser.add_argument("--calls", type=int, default=1_000_000, help="calls before memory is read")
    parser.add_argument("--json", type=Path, default=Path("bench.json"), help="file for the results")
    args = parser.parse_args()
    samples: dict[str, Samples] = {}
    figures: list[Figure] = []
    # In the current folder: /tmp may be in memory, where commits cost nothing.
    with tempfile.TemporaryDirectory(dir=Path.cwd(), prefix=".bench-") as name:
        for section in args.only:
            for figure in _MEASURES[section](args, Path(name), samples):
                print(figure.line(), flush=True)
                figures.append(figure)
    print("\nMedians, with the baselines:")
    for section_samples in samples.values():
        print("\n".join(medians(section_samples)))
    args.json.write_text(json.dumps(_document(figures, samples), indent=2) + "\n")
    print(f"\nResults written to {args.json}.")
    if not all(figure.met for figure in figures):
        sys.exit("a measurement misses its target")


def _calls(args: argparse.Namespace, folder: Path, samples: dict[str, Samples]) -> Iterator[Figure]:
    with echo_server() as (echo, _), wattwise_server(folder / "fresh.db") as (server, _):
        one = samples["one_caller"] = client(
            "one_caller", echo=echo, server=server, database=folder / "baseline.db", rounds=args.rounds
        )
        report = ratio(one, "report", lambda baseline: baseline["echo"] + baseline["commit"])
        yield Figure("ReportResult, one caller ÷ (echo + commit)", report, 1.2)
        trial = ratio(one, "trial", lambda baseline: 7 * (baseline["echo"] + baseline["commit"]))
        yield Figure("whole trial (7 calls), one caller ÷ 7 (echo + commit)", trial, 1.25)
        crowd = samples["crowd"] = client("crowd", echo=echo, server=server, rounds=args.rounds)
        calls = ratio(crowd, "report", lambda baseline: baseline["echo"])
        yield Figure("ReportResult, 64 callers, calls a second ÷ echo's", calls, 0.75, at_least=True)
        messages = ratio(crowd, "stream", lambda baseline: baseline["echo_stream"])
        yield Figure("StreamResults, 64 streams, messages a second ÷ echo's", messages, 0.6, at_least=True)


def _size(args: argparse.Namespace, folder: Path, samples: dict[str, Samples]) -> Iterator[Figure]:
    few, many = folder / "few.db", folder / "many.db"
    fill(few, 10, deep=100_000)
    fill(many, args.jobs)
    starts = [_start(many) for _ in range(3)]
    size = f"{args.jobs} jobs and {TRIALS * args.jobs} trials"
    yield Figure(f"start with {size}, until the first answer", median(starts), 2, unit="s")
    with wattwise_server(few) as (one, _), wattwise_server(many) as (other, process):
        found = samples["next"] = client("next_caller", few=one, many=other, rounds=args.rounds)
        deep = ratio(found, "next_deep", lambda baseline: baseline["next"])
        yield Figure("GetNextBatchSize, a job of 100,000 trials ÷ one of 10", deep, 1.2)
        wide = ratio(found, "next_wide", lambda baseline: baseline["next"])
        yield Figure(f"GetNextBatchSize, a file of {args.jobs} jobs ÷ one of 10", wide, 1.2)
        client("many_calls", server=other, jobs=args.jobs, calls=args.calls)
        memory = resident_megabytes(process)
        yield Figure(f"memory with that file after {args.calls} calls", memory, 250, unit="MB")


def _start(database: Path) -> float:
    start = time.perf_counter()
    with wattwise_server(database) as (address, _), grpc.insecure_channel(address) as channel:
        v1.JobReaderStub(channel).GetJob(v1.GetJobRequest(job_id=job_id(0)), timeout=60)
        return time.perf_counter() - start


def _wide(_args: argparse.Namespace, folder: Path, samples: dict[str, Samples]) -> Iterator[Figure]:
    wide = folder / "wide.db"
    fill(wide, _WIDE_JOBS, batch_sizes=_WIDE_SIZES, running=_WIDE_RUNNING)
    size = f"{_WIDE_JOBS * _WIDE_RUNNING} running trials in {_WIDE_JOBS} jobs of {len(_WIDE_SIZES)} sizes"
    yield Figure(f"restart with {size}", median(_start(wide) for _ in range(3)), 3, unit="s")
    with wattwise_server(wide) as (server, _), trainer(server) as victim:
        with victim() as idle:
            time.sleep(_IDLE_SECONDS)
        with victim() as beside:
            found = samples["wide"] = client("wide_jobs", server=server, jobs=_WIDE_JOBS)
    yield Figure("the slowest page of 1,000 of these jobs", max(found["page"]), 0.5, unit="s")
    yield Figure("another trainer's reports, 99th percentile, idle server", idle.p99, unit="ms")
    yield Figure("the same while those trials report and the jobs are listed", beside.p99, 100, unit="ms")
    longest = pause.measure(folder)
    yield Figure(
        f"longest pause while a report lowers the bound of {pause.TRIALS} trials", 1e3 * longest, 50, unit="ms"
    )


def _choice(_args: argparse.Namespace, _folder: Path, samples: dict[str, Samples]) -> Iterator[Figure]:
    found = samples["choice"] = choice.measure()
    yield Figure(f"a choice with {choice.SIZES} batch sizes", 1e3 * median(found["choice"]), 2, unit="ms")
    floor = ratio(found, "choice", lambda baseline: baseline["solve"])
    yield Figure("the same ÷ twenty Cholesky factors and solutions of that size", floor)


def _import(args: argparse.Namespace, folder: Path, samples: dict[str, Samples]) -> Iterator[Figure]:
    with wattwise_server(folder / "import.db") as (server, _):
        found = samples["first_call"] = client("first_call", server=server, rounds=args.rounds)
        trainer_pays = client("in_trainer", server=server, rounds=args.rounds)
    first = ratio(found, "client", lambda baseline: baseline["bare"])
    yield Figure("import and first call ÷ a bare grpcio client's", first, 1.15)
    launch = ratio(found, "optimizer", lambda baseline: baseline["bare_trial"])
    yield Figure("import, get_batch_size and exit ÷ a bare grpcio client's calls", launch)
    processes = samples["processes"] = trainer_pays["processes"]
    calls = samples["in_trainer"] = trainer_pays["calls"]
    for name, kind, floor, target in (
        ("import wattwise, CPU time beyond import grpc", "package", "grpc", 40),
        ("import BatchSizeOptimizer, CPU time beyond import grpc", "optimizer", "grpc", None),
        ("the same beyond grpc and the stubs", "optimizer", "stubs", None),
        ("wattwise --help, CPU time beyond an empty parser's", "help", "argparse", 40),
        ("wattwise --version, the same", "version", "argparse", 40),
        ("wattwise jobs list --help, CPU time beyond importing the client", "jobs list --help", "client", None),
    ):
        yield Figure(name, 1e3 * (median(processes[kind]) - median(processes[floor])), target, unit="ms")
    for kind, target in (("version", 100), ("help", 150), ("jobs list", 250)):
        words = kind if " " in kind else f"--{kind}"
        yield Figure(f"wattwise {words}, CPU time", 1e3 * median(processes[kind]), target, unit="ms")
        yield Figure("the same ÷ python -c pass", ratio(processes, kind, lambda baseline: baseline["pass"]))
    yield Figure("on_evaluate", 1e3 * median(calls["on_evaluate"]), 4, unit="ms")


def _attacks(_args: argparse.Namespace, folder: Path, samples: dict[str, Samples]) -> Iterator[Figure]:
    with wattwise_server(folder / "attacks.db") as (server, _):
        found = samples["attacks"] = attacks.measure(server)
    for name, seconds in found.items():
        target = None if name in attacks.UNBOUNDED else 100
        yield Figure(f"ReportResult, 99th percentile: {name}", 1e3 * median(seconds), target, unit="ms")


def _moves(args: argparse.Namespace, _folder: Path, samples: dict[str, Samples]) -> Iterator[Figure]:
    found = samples["moves"] = moves.measure(max(3, args.rounds // 4))
    for what, seconds in found.items():
        yield Figure(
            f"a trainer's server {what}: until another answers its report, the longest", max(seconds), 3, unit="s"
        )


def _page(args: argparse.Namespace, folder: Path, samples: dict[str, Samples]) -> Iterator[Figure]:
    read = folder / "read.db"
    fill(read, readers.JOBS, deep=readers.TRIALS)
    with wattwise_server(read) as (server, _), readers.page(server) as url:
        rounds = max(3, args.rounds // 4)
        late = samples["page"] = readers.neighbour(server, url, rounds)
        for tabs in readers.TABS:
            beside = ratio(late, readers.beside(tabs), lambda baseline: baseline[readers.ALONE])
            yield Figure(f"ReportResult, 95th percentile, {readers.beside(tabs)} ÷ none", beside, 1.5)
        seconds, late_beside = readers.export(server, url)
        alone = median(late[readers.ALONE])
        yield Figure("ReportResult, 95th percentile, beside an export ÷ none", late_beside / alone)
        yield Figure(f"that export, of {readers.TRIALS} trials", seconds, unit="s")
        crowd = samples["crowd"] = readers.crowded(url, rounds)
        beside = ratio(crowd, readers.CROWD, lambda baseline: baseline[readers.ALONE])
        yield Figure(f"the list of jobs beside {readers.CROWD} ÷ none", beside, 1.5)
        yield Figure(f"that list beside {readers.CROWD}", median(crowd[readers.CROWD]), unit="s")
        if CHROMIUM is None:
            print("Chromium is missing: no first paint")
            return
        painted = samples["paint"] = readers.first_paint(url, rounds)
        for name, times in painted.items():
            yield Figure(f"first paint, without a cache: {name}", median(times), 1, unit="s")


def _document(figures: list[Figure], samples: dict[str, Samples]) -> dict[str, Any]:
    versions = {"python": platform.python_version(), "grpcio": grpc.__version__, "sqlite": sqlite3.sqlite_version}
    machine = {"system": platform.platform(), "processors": Path("/proc/cpuinfo").read_text().count("processor\t")}
    return {
        "figures": [asdict(figure) | {"met": figure.met} for figure in figures],
        "measured": samples,
        "versions": versions,
        "machine": machine,
    }


_MEASURES = {
    "calls": _calls,
    "size": _size,
    "wide": _wide,
    "choice": _choice,
    "import": _import,
    "attacks": _attacks,
    "postgres": postgres.measure,
    "moves": _moves,
    "page": _page,
}


if __name__ == "__main__":
    main()
