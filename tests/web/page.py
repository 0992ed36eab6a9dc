"""The real `wattwise web` in its own process, and jobs for it to show."""

from __future__ import annotations

import os
import random
import re
from pathlib import Path
from typing import TYPE_CHECKING

import grpc
import httpx
from wattwise import v1
from wattwise.rpc.calls import new_id

from tests.forking import ForkedProcess
from tests.jobs import Trainer, power_sample
from tests.people import PeopleStub

if TYPE_CHECKING:
    from typing_extensions import Self

HOSTILE = ("test-<script>alert(1)</script>", "test-a/b?c=d&e#f%20", "test-'\"--><b>", "test-\N{SNOWMAN} {{ 7*7 }}")


class WebPage:
    """A running page; leaving the context kills it.

    Args:
        server: The address of the server that it reads from.
        log: The file for its log.
        options: Further options.
    """

    def __init__(self, server: str, log: Path, *options: str, address: str = "127.0.0.1:0") -> None:
        arguments = ["web", "--address", address, "--server", server, *options]
        self.log, self.server = log, server
        environment = {name: text for name, text in os.environ.items() if not name.startswith("WATTWISE_")}
        with log.open("a") as file:
            self.process = ForkedProcess(*arguments, environment=environment, stderr=file.fileno())
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        found = re.fullmatch(r"wattwise web shows \S+ at (\S+)/\n", line)
        assert found, f"instead of its address the page printed {line!r}: {log.read_text()}"
        self.url = found[1]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.stop()

    def stop(self) -> int:
        """Ends it as a service manager does; returns the exit status."""
        if self.process.poll() is None:
            self.process.terminate()
        status = self.process.wait(timeout=20)
        if self.process.stdout:
            self.process.stdout.close()
        return status

    def client(self) -> httpx.Client:
        """A browser without scripts, which keeps cookies; it uses no proxy of the environment."""
        return httpx.Client(base_url=self.url, timeout=30, trust_env=False)


def populate(channel: grpc.Channel, *, long: int = 60) -> dict[str, str]:
    """Makes jobs in the states that people see; returns their ids by the state."""
    dice, stub = random.Random(7), v1.BatchSizeOptimizerStub(channel)
    policy = "knowledge_gradient"
    saving = _walk(channel, dice, "resnet-nightly", long, policy=policy, job_id_prefix="resnet")
    loss = _walk(channel, dice, "bert-weekly", 14, policy=policy, job_id_prefix="bert", flat=True)
    new = Trainer(stub, job_id="vision-new", job_id_prefix="vision")
    stuck = Trainer(stub, job_id="stuck-on-memory", job_id_prefix="stuck", batch_sizes=[64], default_batch_size=64)
    stuck.end(stuck.next(), v1.END_REASON_OUT_OF_MEMORY)
    nan = Trainer(stub, job_id="nan-metrics", job_id_prefix="nan")
    trial = nan.next()
    for epoch in range(1, 4):
        nan.report(trial, 10.0 * epoch, float("nan"), epoch, float(epoch))
    running = saving.next()
    for epoch in range(1, 6):
        saving.report(running, 900.0 * epoch, 0.3 + 0.1 * epoch, epoch, 6.0 * epoch)
    for hostile in HOSTILE:
        Trainer(stub, job_id=hostile).run(5.0)
    return {
        "saving": saving.job_id,
        "loss": loss.job_id,
        "new": new.job_id,
        "stuck": stuck.job_id,
        "nan": nan.job_id,
    }


def _walk(
    channel: grpc.Channel, dice: random.Random, job_id: str, count: int, *, flat: bool = False, **fields: object
) -> Trainer:
    """A job with so many trials, whose cost depends on the batch size; of a flat one the default is the best."""
    stub = v1.BatchSizeOptimizerStub(channel)
    trainer = Trainer(
        stub, job_id=job_id, batch_sizes=[16, 32, 64, 128, 256], default_batch_size=256, eta_knob=0.5, max_epochs=40,
        **fields,
    )  # fmt: skip
    epochs = {16: 6, 32: 7, 64: 9, 128: 13, 256: 24}
    if flat:
        epochs = {16: 30, 32: 26, 64: 22, 128: 18, 256: 8}
    monitor = v1.Monitor(kinds=["nvml"], quality=v1.ENERGY_QUALITY_MEASURED)
    admin = PeopleStub(channel)
    for number in range(count):
        if number in ((2, 3, 4) if flat else (2, 6, 14, 22, 30)):
            admin.RequestBaseline(v1.RequestBaselineRequest(job_id=job_id, request_id=new_id()))
        trial = trainer.next()
        size = trial.batch_size
        needed = max(2, round(epochs[size] * dice.uniform(0.85, 1.2)))
        seconds = 4.0 + 160 / size
        if number in (5, 23):
            trainer.report(trial, 500.0, 0.4, 1, seconds, monitor=monitor)
            trainer.end(trial, v1.END_REASON_ERROR)
            continue
        if number in (8, 9, 10):
            request = v1.ReportPowerProfileRequest(
                trial=trial.id,
                samples=[
                    power_sample(watts, 10 * (watts * 0.4 + 9000 / watts), 1.0 + 40 / watts, 10)
                    for watts in range(60, 101, 5)
                ],
            )
            stub.ReportPowerProfile(request)
        for epoch in range(1, needed + 1):
            metric = 0.95 if epoch == needed else 0.35 + 0.5 * epoch / needed
            joules = seconds * epoch * 71.5e3
            decision = trainer.report(trial, joules, metric, epoch, seconds * epoch * 60, monitor=monitor)
            if decision.stop_train:
                break
    return trainer
