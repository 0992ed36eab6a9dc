"""The callback for Lightning's Trainer."""

from __future__ import annotations

import itertools
import logging
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytestmark = [
    pytest.mark.trainers,
    # Lightning's own, which its users see too.
    pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning"),
    pytest.mark.filterwarnings("ignore:The '.*_dataloader' does not have many workers"),
]
pytest.importorskip("lightning", reason="needs Lightning: make test-trainers")

from lightning.pytorch.utilities.exceptions import SIGTERMException
from wattwise import BatchSizeOptimizer, Client, v1
from wattwise.errors import TrainerSetupError
from wattwise.integrations.lightning import WattwiseCallback, saved_state

from tests.client.integrations.conformance import Listener, TrainerConformance
from tests.client.integrations.ranks import last_lines, processes, two_ranks
from tests.client.integrations.script import EXAMPLES, Script
from tests.client.integrations.with_lightning import Model, fit, loader, trainer
from tests.client.test_files import SPECIAL
from tests.client.training.script import epochs, read_line
from tests.live_server import LiveServer

OTHER_NAME = """
import pytorch_lightning
from wattwise.integrations.lightning import WattwiseCallback
assert issubclass(WattwiseCallback, pytorch_lightning.Callback)
"""


class Batches:
    """Training data that is not a `DataLoader`."""

    def __iter__(self) -> Iterator[Any]:
        return iter(loader(EXAMPLES, 16))


class TestLightning(TrainerConformance):
    """The requirements on every callback, and those on this one."""

    name = "with_lightning"
    fit = staticmethod(fit)

    @pytest.fixture(autouse=True)
    def sigint(self) -> Iterator[None]:
        """Restores the handler of SIGINT: Lightning ignores Ctrl-C after the first one."""
        before = signal.getsignal(signal.SIGINT)
        yield
        signal.signal(signal.SIGINT, before)

    @pytest.fixture
    def callback(self, bso: BatchSizeOptimizer) -> WattwiseCallback:
        """The callback of a trial with batch size 16."""
        return WattwiseCallback(bso, "val_accuracy")

    def test_accumulated_gradients(self, callback: WattwiseCallback) -> None:
        """Accumulated batches add up to the trial's batch size."""
        script, batches = Script(iter([0.95])), loader(EXAMPLES, callback.loader_batch_size(accumulate_grad_batches=2))
        running = trainer(callback, script, accumulate_grad_batches=2)
        running.fit(Model(script), batches, loader(8, 8))
        assert script.sizes == [8] * 8
        assert running.global_step == 4

    def test_accumulated_steps_are_one_step(self, bso: BatchSizeOptimizer) -> None:
        """A step for the listener is an update of the weights, even if the last one accumulates less."""
        events: list[str] = []
        callback, script = WattwiseCallback(bso, "val_accuracy", power=Listener(events)), Script(iter([0.95]))
        batches = loader(EXAMPLES - 8, callback.loader_batch_size(accumulate_grad_batches=2))
        trainer(callback, script, accumulate_grad_batches=2).fit(Model(script), batches, loader(8, 8))
        assert events == [*["begin", "end"] * 4, "epoch", "over"]

    def test_size_that_does_not_fit(self, callback: WattwiseCallback) -> None:
        """A batch size that cannot be split evenly is refused; the error names the sizes that can."""
        with pytest.raises(TrainerSetupError, match=r"batch_size to one of 1, 2, 4, 8, .*accumulate_grad_batches"):
            callback.loader_batch_size(devices=2, accumulate_grad_batches=3)

    def test_data_without_a_batch_size(self, callback: WattwiseCallback, caplog: pytest.LogCaptureFixture) -> None:
        """Training data without a batch size attribute is accepted with a warning."""
        script = Script(iter([0.95]))
        with caplog.at_level(logging.WARNING, "wattwise"):
            trainer(callback, script).fit(Model(script), Batches(), loader(8, 8))
        assert [record.args for record in caplog.records if "batch_size" in record.getMessage()] == [(16,)]

    def test_other_validations_are_not_reported(self, callback: WattwiseCallback, client: Client) -> None:
        """Validations outside of the training are not reported."""
        script = Script(iter([1.0, 0.1, 0.95, 1.0]))
        running, model = trainer(callback, script), Model(script)
        running.validate(model, loader(8, 8), verbose=False)
        running.fit(model, loader(EXAMPLES, 16), loader(8, 8))
        running.validate(model, loader(8, 8), verbose=False)
        assert epochs(client, callback.bso.trial) == [1, 2]

    @pytest.mark.parametrize(
        ("error", "reason"),
        [
            (MemoryError(), v1.END_REASON_OUT_OF_MEMORY),
            (SIGTERMException(), v1.END_REASON_PREEMPTED),
        ],
    )
    def test_callback_itself_ends_the_trial(
        self, bso: BatchSizeOptimizer, client: Client, error: BaseException, reason: v1.EndReason.ValueType
    ) -> None:
        """An exception ends the trial even if the user catches it outside of `fit`."""

        def fail() -> None:
            raise error

        with pytest.raises(type(error)):
            self.fit(bso, Script(itertools.repeat(0.1), in_step=fail))
        assert self.trial(client, bso).end_reason == reason

    def test_other_name_of_lightning(self) -> None:
        """In a program that imports `pytorch_lightning`, the callback belongs to that package."""
        subprocess.run([sys.executable, "-W", "ignore", "-c", OTHER_NAME], check=True)

    def test_two_ranks(self, grpc_server: LiveServer, client: Client) -> None:
        """Two processes train together with half of the batch size each, and stop in the same epoch."""
        assert two_ranks(self.name, grpc_server.address) == [str([8] * 12)] * 2
        (trial,) = client.trials(f"test-ranks-{self.name}")
        assert (trial.converged, trial.newest.epoch) == (True, 3)
        # The mean of the ranks, as the training logs it.
        assert trial.newest.metric == pytest.approx(0.94)

    @pytest.mark.parametrize("ranks", [1, 2])
    def test_killed_and_resumed(self, grpc_server: LiveServer, client: Client, tmp_path: Path, ranks: int) -> None:
        """A training that SIGKILL ends in the second epoch continues its trial from the checkpoint of the first."""
        job_id = f"test-killed-{self.name}-{ranks}"
        arguments = [self.name, grpc_server.address, job_id, str(tmp_path)]
        with processes("killed", arguments, ranks) as running:
            assert [read_line(process) for process in running] == ["in a step"] * ranks
        with processes("killed", arguments, ranks) as running:
            assert last_lines(running) == [str([16 // ranks] * 8)] * ranks
        (trial,) = client.trials(job_id)
        assert (trial.converged, trial.newest.epoch) == (True, 3)
        # A second of the process that was killed, and the first of the resumed one.
        assert list(client.measurements(trial.id))[1].time_seconds >= 2


@pytest.mark.parametrize("kind", SPECIAL)
def test_checkpoint_that_is_none(tmp_path: Path, kind: str) -> None:
    """A training does not wait for a pipe in place of a checkpoint."""
    SPECIAL[kind](tmp_path / "last.ckpt")
    with pytest.raises(TrainerSetupError, match=str(tmp_path)):
        saved_state(tmp_path / "last.ckpt")


@pytest.mark.parametrize("content", [{"callbacks": []}, {"callbacks": {"wattwise": 1}}, {}])
def test_checkpoint_without_a_trial(content: dict[str, Any]) -> None:
    """A checkpoint of other types than ours has no trial."""
    assert saved_state(content) is None
