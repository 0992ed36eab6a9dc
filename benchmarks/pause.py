"""The longest pause of the event loop while one report stops thousands of running trials that cost more."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import uvloop
from wattwise import v1
from wattwise_server.clock import steady_clock
from wattwise_server.config import Limits
from wattwise_server.rpc import convert
from wattwise_server.store.open import open_store
from wattwise_server.usecases.optimizer import Optimizer

from benchmarks import jobs

TRIALS = 16_000
_AT_ONCE = 64


def measure(folder: Path) -> float:
    """The longest pause, in seconds."""
    return uvloop.run(_measure(folder / "pause.db"))


async def _measure(database: Path) -> float:
    clock = steady_clock()
    async with open_store(f"sqlite:///{database}", clock) as store:
        optimizer = Optimizer(store, clock, Limits(max_running_trials=0))
        job, _ = await optimizer.register(convert.job_draft(v1.RegisterJobRequest(job=jobs.job_spec())))
        job_id = job.spec.job_id
        best, _ = await optimizer.next_trial(job_id, "")
        waiting = iter(range(TRIALS))

        async def run_some() -> None:
            for _ in waiting:
                trial, _ = await optimizer.next_trial(job_id, "")
                await optimizer.report(convert.report(_report(convert.trial(trial), 10.0, 0.1)))

        await asyncio.gather(*(run_some() for _ in range(_AT_ONCE)))
        stopping = asyncio.create_task(optimizer.report(convert.report(_report(convert.trial(best), 1.0, 0.95))))
        pauses = []
        while not stopping.done():
            start = time.perf_counter()
            await asyncio.sleep(0)
            pauses.append(time.perf_counter() - start)
        decision = await stopping
        left = await store.trials(job_id, None, None, TRIALS, 1)
        if not decision.converged or left[0].running:
            raise RuntimeError("the trials were not stopped")
        return max(pauses)


def _report(trial: v1.Trial, cost: float, metric: float) -> v1.ReportResultRequest:
    result = v1.TrainingResult(
        trial=trial.id, time_seconds=cost, energy_joules=300.0 * cost, metric=metric, current_epoch=1
    )
    return v1.ReportResultRequest(result=result)
