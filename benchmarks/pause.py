"""The longest pause of the event loop while one report lowers the bound of thousands of running trials."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import uvloop
from wattwise import v1
from wattwise.rpc.calls import new_id
from wattwise.rules import EndReason
from wattwise_server.clock import steady_clock
from wattwise_server.config import Limits
from wattwise_server.rpc import answers, requests
from wattwise_server.store.base import TrialList
from wattwise_server.store.open import open_store
from wattwise_server.usecases.training import Training

from benchmarks import jobs

TRIALS = 16_000
_AT_ONCE = 64


def measure(folder: Path) -> float:
    """Returns the longest pause, in seconds."""
    return uvloop.run(_measure(folder / "pause.db"))


async def _measure(database: Path) -> float:
    clock = steady_clock()
    async with open_store(f"sqlite:///{database}", clock) as store:
        training = Training(store, Limits(max_running_trials=0))
        # A policy that tries both batch sizes from the start. Trials of the best known one are not stopped.
        spec = jobs.job_spec(batch_sizes=[32, 64], policy="gts")
        await training.register(requests.job_draft(v1.RegisterJobRequest(job=spec)))
        best = await _next(training, spec.job_id)
        while best.batch_size == spec.default_batch_size:
            best = await _next(training, spec.job_id)
        waiting = iter(range(TRIALS))

        async def run_some() -> None:
            for _ in waiting:
                trial = await _next(training, spec.job_id)
                await training.report(requests.report(_report(trial, 10.0, 0.1)))

        await asyncio.gather(*(run_some() for _ in range(_AT_ONCE)))
        stopping = asyncio.create_task(training.report(requests.report(_report(best, 1.0, 0.95))))
        pauses = []
        while not stopping.done():
            start = time.perf_counter()
            await asyncio.sleep(0)
            pauses.append(time.perf_counter() - start)
        await stopping
        if not await store.reads.count_trials(TrialList(spec.job_id, end_reasons=(EndReason.COST_BOUND,))):
            raise RuntimeError("no trial was stopped")
        return max(pauses)


async def _next(training: Training, job_id: str) -> v1.Trial:
    trial = await training.next_trial(job_id, new_id())
    return answers.trial(trial)


def _report(trial: v1.Trial, cost: float, metric: float) -> v1.ReportResultRequest:
    result = v1.TrainingResult(
        trial=trial.id,
        measurement=v1.Measurement(time_seconds=cost, energy_joules=300.0 * cost, metric=metric, epoch=1),
    )
    return v1.ReportResultRequest(result=result)
