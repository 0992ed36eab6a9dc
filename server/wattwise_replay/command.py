"""The command `wattwise replay`."""

from __future__ import annotations

import argparse
import json
import os
import secrets
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from wattwise import Client
from wattwise.commands.actions import near_ids
from wattwise.commands.options import add_credential_options, credentials_of, usual_server
from wattwise.drafts import POLICIES as FIELDS
from wattwise.drafts import Policy

from wattwise_replay import own_trials, traces, workload_file
from wattwise_replay.belief import draw_beliefs, snapshots
from wattwise_replay.compare import POLICIES, Comparison, MakeEngine, compare
from wattwise_replay.engines import Engine
from wattwise_replay.errors import ReplayError
from wattwise_replay.in_process import InProcess
from wattwise_replay.named_worlds import NAMES, named_world
from wattwise_replay.over_grpc import OverGrpc
from wattwise_replay.play import play_prior
from wattwise_replay.plot import check_plot, draw
from wattwise_replay.synthetic import synthetic
from wattwise_replay.tables import as_json, counted, print_all, print_beliefs, print_comparison
from wattwise_replay.workload import Workload, job_spec
from wattwise_replay.world import World

_EXAMPLES = """examples:
  wattwise replay --synthetic 1
  wattwise replay --traces traces --gpu v100 --workload cifar100 --plot regret.svg
  wattwise replay --traces traces --all --json results.json
  wattwise replay --workload-file mine.toml --plot regret.svg
  wattwise replay --history runs/mnist-nightly/history.jsonl
  wattwise replay --job mnist-nightly
  wattwise replay --synthetic two-humps --recurrences 1000
  wattwise replay --synthetic 1 --drift-at 40 --window 10
  wattwise replay --traces traces --gpu a40 --workload cifar100 --prior v100
  wattwise replay --synthetic large-optimum --recurrences 12 --belief belief.svg
  wattwise replay --synthetic 1 --seeds 2 --server localhost:50051
"""
_SERVER_SECONDS = 10.0
_USUAL_SEEDS = 20
_USUAL_BELIEF: Policy = "knowledge_gradient"


class ReplayCommand:
    """The `replay` subcommand of `wattwise`."""

    def add_arguments(self, parser: argparse.ArgumentParser, /) -> None:
        """Declares the options."""
        parser.formatter_class = argparse.RawDescriptionHelpFormatter
        parser.epilog = _EXAMPLES
        _add_workload_options(parser.add_argument_group("workload"))
        _add_policy_options(parser.add_argument_group("policies"))
        _add_output_options(parser.add_argument_group("output"))
        add_credential_options(parser)

    def run(self, args: argparse.Namespace, /) -> int:
        """Replays, prints and writes the results; returns 0."""
        _check_belief(args)
        _check_files(args)
        with ExitStack() as stack:
            client = _client(args, stack)
            workloads = _workloads(args, client)
            _check_drift(args, workloads)
            make = _maker(args, None if args.job else client)
            if args.belief:
                return _draw_belief(args, workloads[0], make)
            comparisons = [_compared(args, workload, make) for workload in workloads]
        if args.json != "-":
            _print(comparisons)
        _write(args, comparisons)
        return 0


COMMAND = ReplayCommand()


def _add_workload_options(group: argparse._ArgumentGroup) -> None:
    source = group.add_mutually_exclusive_group(required=True)
    source.add_argument("--traces", type=Path, metavar="DIR", help="folder of recorded traces")
    source.add_argument(
        "--workload-file",
        type=Path,
        action="append",
        metavar="FILE.toml",
        help="recorded runs of your own workload; repeatable",
    )
    source.add_argument("--history", type=Path, metavar="FILE", help="history.jsonl of a run of `wattwise run`")
    source.add_argument("--job", metavar="ID", help="the trials of a job on a server, which is only read")
    source.add_argument(
        "--synthetic",
        metavar="SEED",
        help=f"a synthetic workload generated from SEED, or one of these, where K is a number: {', '.join(NAMES)}",
    )
    group.add_argument("--workload", choices=traces.WORKLOADS, help="workload of the traces")
    group.add_argument("--gpu", metavar="GPU", help="GPU of the traces, such as v100")
    group.add_argument("--all", action="store_true", help="all workloads of the traces on all GPUs, in one table")
    group.add_argument(
        "--recurrences", type=_at_least(1), metavar="N", help="default: 2 x batch sizes x power limits, as in the paper"
    )
    group.add_argument(
        "--drift-at",
        type=_at_least(1),
        metavar="N",
        help="after N recurrences, reverse the measurements over the batch sizes",
    )
    group.add_argument(
        "--prior",
        metavar="NAME",
        help="first replay a job on this workload or GPU, and name it in prior_job_ids; mirrored is the same workload "
        "with its measurements reversed over the batch sizes",
    )
    group.add_argument(
        "--overlap",
        type=_share,
        default=0.0,
        metavar="RATE",
        help="share of recurrences submitted while the one before runs (default: %(default)s)",
    )


def _add_policy_options(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--policy", choices=POLICIES, action="append", help="a policy to run; repeatable (default: all)")
    group.add_argument("--eta", type=float, default=0.5, help="weight of energy against time (default: %(default)s)")
    group.add_argument("--beta", type=float, default=2.0, help="early-stopping factor (default: %(default)s)")
    group.add_argument(
        "--window", type=int, default=0, metavar="N", help="use the N newest costs of a batch size (default: 0, all)"
    )
    group.add_argument(
        "--seeds",
        type=_at_least(1),
        metavar="K",
        help=f"number of runs, with seeds from 0 (default: {_USUAL_SEEDS})",
    )
    group.add_argument(
        "--server",
        metavar="ADDRESS",
        help="use this server, not the policies in process; the jobs stay on it. With --job, that job's server "
        "($WATTWISE_SERVER; default: localhost:50051)",
    )


def _add_output_options(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--json", metavar="FILE", help="write all results as JSON; - writes to standard output instead of the tables"
    )
    group.add_argument("--plot", type=Path, metavar="FILE", help="plot cumulative regret to a .svg, .png or .pdf file")
    group.add_argument(
        "--belief",
        type=Path,
        metavar="FILE",
        help="instead of comparing, replay one policy with seed 0, and draw what it believes about the cost of a model "
        "at every batch size after 1, 4 and all --recurrences to a .svg, .png or .pdf file (default policy: "
        f"{_USUAL_BELIEF})",
    )


def _check_files(args: argparse.Namespace) -> None:
    """Refuses files that cannot be written before the replay starts."""
    if args.json and args.json != "-":
        _check_writable(Path(args.json))
    for path in (args.plot, args.belief):
        if path:
            check_plot(path)
            _check_writable(path)


def _check_belief(args: argparse.Namespace) -> None:
    """Refuses options of a comparison, and what is more than one replay in process."""
    if not args.belief:
        return
    options = ["plot", "json", "seeds", "all"] + ["server"] * (args.job is None)
    refused = [f"--{option}" for option in options if getattr(args, option)]
    repeated = [option for option in ("policy", "workload_file") if len(getattr(args, option) or ()) > 1]
    refused += [f"several --{option.replace('_', '-')}" for option in repeated]
    if refused:
        raise ReplayError(
            "--belief draws one policy on one workload with seed 0, in process, and cannot be combined with "
            f"{refused[0]}"
        )


def _check_writable(path: Path) -> None:
    """Raises ReplayError if a file cannot be written; leaves it unchanged."""
    try:
        is_new = not path.exists()
        path.open("ab").close()
        if is_new:
            path.unlink()
    except OSError as error:
        raise ReplayError(f"cannot write {path}: {error.strerror}") from error


def _check_drift(args: argparse.Namespace, workloads: Sequence[Workload]) -> None:
    if args.drift_at is None:
        return
    for workload in workloads:
        recurrences = workload.horizon if args.recurrences is None else args.recurrences
        if args.drift_at >= recurrences:
            raise ReplayError(
                f"{workload.setting} has {counted(recurrences, 'recurrence')}, so --drift-at {args.drift_at} has no "
                "effect; lower it, or raise --recurrences"
            )


def _client(args: argparse.Namespace, stack: ExitStack) -> Client | None:
    server = args.server or (usual_server() if args.job is not None else None)
    if not server:
        return None
    # A user is waiting for the trials of a job: a server that is away is reported at once.
    retry = args.job is None
    return stack.enter_context(Client(server, timeout=_SERVER_SECONDS, retry=retry, credentials=credentials_of(args)))


def _workloads(args: argparse.Namespace, client: Client | None) -> Sequence[Workload]:
    _check_selection(args)
    if args.workload_file is not None:
        return [workload_file.load(path) for path in args.workload_file]
    if args.history is not None:
        return [own_trials.from_history(args.history, args.eta)]
    if args.job is not None and client is not None:
        with near_ids(client, args.job):
            return [own_trials.from_server(client, args.job)]
    if args.synthetic is not None:
        return [_synthetic(args.synthetic)]
    return _measured(args)


def _check_selection(args: argparse.Namespace) -> None:
    """Refuses options that select among traces where there are none to select from."""
    chosen = [option for option in ("workload", "gpu", "all") if getattr(args, option)]
    sources = ("synthetic", "workload_file", "history", "job")
    others = [option for option in sources if getattr(args, option) is not None]
    if args.all and chosen[0] != "all":
        others.append("all")
    if chosen and others:
        other = others[0].replace("_", "-")
        raise ReplayError(f"--{chosen[0]} selects among the traces and cannot be combined with --{other}")


def _measured(args: argparse.Namespace) -> Sequence[Workload]:
    gpus = traces.gpus(args.traces)
    if not gpus:
        raise ReplayError(f"no traces in {args.traces}; --traces is the folder with summary_train.csv")
    if args.all:
        return [traces.load(args.traces, name, gpu) for gpu in gpus for name in traces.WORKLOADS]
    if args.workload is None or args.gpu is None:
        known = ", ".join(gpus)
        raise ReplayError(f"choose --workload ({', '.join(traces.WORKLOADS)}) and --gpu ({known}), or use --all")
    return [traces.load(args.traces, args.workload, args.gpu)]


def _synthetic(name: str) -> Workload:
    return synthetic(int(name)) if name.isdecimal() else named_world(name)


def _maker(args: argparse.Namespace, client: Client | None) -> MakeEngine:
    run = f"replay-{secrets.token_hex(4)}"

    def engine(workload: Workload, name: str, policy: Policy, seed: int, prior: Engine | None) -> Engine:
        job_id = f"{run}-{name}-{policy}-{seed}"
        job = job_spec(workload, job_id, policy=policy, eta=args.eta, beta=args.beta, seed=seed, window=args.window)
        if client:
            return OverGrpc(client, job, [prior] if isinstance(prior, OverGrpc) else [])
        return InProcess(job, priors=[prior] if isinstance(prior, InProcess) else [])

    def make(world: World, policy: Policy, seed: int) -> Engine:
        workload, prior = world.workload, None
        name = f"{workload.name}-{workload.gpu}"
        before = None if args.prior is None else _prior(args, workload)
        if before is not None and "prior_job_ids" in FIELDS[policy]:
            prior = engine(before, f"{name}-prior", policy, seed, None)
            play_prior(prior, before, args.eta, seed)
        return engine(workload, name, policy, seed, prior)

    return make


def _prior(args: argparse.Namespace, workload: Workload) -> Workload:
    """Returns the workload of the job before."""
    name: str = args.prior
    if name == "mirrored":
        return workload.mirrored()
    if args.synthetic is not None:
        return _synthetic(name)
    if args.traces is not None and name in traces.WORKLOADS:
        return traces.load(args.traces, name, workload.gpu)
    if args.traces is not None and name in (gpus := traces.gpus(args.traces)):
        return traces.load(args.traces, workload.name, name)
    if args.traces is not None:
        known = ", ".join((*traces.WORKLOADS, *gpus, "mirrored"))
        raise ReplayError(f"--prior {name} is neither a workload nor a GPU of the traces; use one of {known}")
    return workload_file.load(Path(name))


def _world(args: argparse.Namespace, workload: Workload) -> World:
    return World(workload if args.drift_at is None else workload.drifting(args.drift_at), args.eta)


def _draw_belief(args: argparse.Namespace, workload: Workload, make: MakeEngine) -> int:
    """Draws what one policy believes, and prints its next choices."""
    world, policy = _world(args, workload), args.policy[0] if args.policy else _USUAL_BELIEF

    def engine() -> InProcess:
        made = make(world, policy, 0)
        if not isinstance(made, InProcess):
            raise TypeError("--server is refused with --belief")
        return made

    recurrences = workload.horizon if args.recurrences is None else args.recurrences
    found = list(snapshots(engine, world, recurrences, args.overlap))
    draw_beliefs(found, f"{workload.setting}, {policy}", args.belief)
    print_beliefs(found, workload, policy)
    return 0


def _compared(args: argparse.Namespace, workload: Workload, make: MakeEngine) -> Comparison:
    world = _world(args, workload)
    policies = args.policy or POLICIES
    return compare(
        world,
        make,
        list(dict.fromkeys(policies)),
        seeds=args.seeds or _USUAL_SEEDS,
        recurrences=args.recurrences,
        overlap=args.overlap,
    )


def _print(comparisons: Sequence[Comparison]) -> None:
    if len(comparisons) == 1:
        print_comparison(comparisons[0])
    else:
        print_all(comparisons)


def _write(args: argparse.Namespace, comparisons: Sequence[Comparison]) -> None:
    if args.json:
        text = json.dumps([as_json(comparison) for comparison in comparisons], indent=1)
        if args.json == "-":
            print(text)  # noqa: T201 - the command's output
        else:
            _write_text(Path(args.json), text)
    if args.plot:
        draw(comparisons, args.plot)


def _write_text(path: Path, text: str) -> None:
    try:
        path.write_text(text + os.linesep, encoding="utf-8")
    except OSError as error:
        raise ReplayError(f"cannot write {path}: {error.strerror}") from error


def _at_least(least: int) -> type[int]:
    def read(text: str) -> int:
        value = int(text)
        if value < least:
            raise argparse.ArgumentTypeError(f"{value} is too small; use {least} or more")
        return value

    read.__name__ = "whole number"
    return read  # type: ignore[return-value]  # argparse takes any callable


def _share(text: str) -> float:
    value = float(text)
    if not 0 <= value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a share; use a number from 0 to below 1")
    return value
