"""The callback for Hugging Face's Trainer."""

from __future__ import annotations

import contextlib
import itertools
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.trainers
pytest.importorskip("transformers", reason="needs Transformers: make test-trainers")

from transformers import TrainerControl, TrainerState, TrainingArguments
from wattwise import BatchSizeOptimizer, Client
from wattwise.errors import TrainerSetupError
from wattwise.integrations.huggingface import WattwiseCallback, saved_state

from tests.client.integrations.conformance import Listener, TrainerConformance
from tests.client.integrations.ranks import two_ranks
from tests.client.integrations.script import EXAMPLES, Script
from tests.client.integrations.with_huggingface import DATA, fit, trainer
from tests.client.test_files import SPECIAL
from tests.client.training.script import StepMonitor, epochs, job_spec
from tests.live_server import LiveServer


class TestHuggingFace(TrainerConformance):
    """The requirements on every callback, and those on this one."""

    name = "with_huggingface"
    fit = staticmethod(fit)

    @pytest.fixture
    def callback(self, bso: BatchSizeOptimizer) -> WattwiseCallback:
        """The callback of a trial with batch size 16."""
        return WattwiseCallback(bso, "eval_accuracy")

    @pytest.mark.parametrize(
        ("arguments", "size"), [({"gradient_accumulation_steps": 2}, 8), ({"per_device_train_batch_size": 4}, 4)]
    )
    def test_accumulated_gradients(self, callback: WattwiseCallback, arguments: dict[str, int], size: int) -> None:
        """Size and accumulated steps add up to the trial's batch size, whichever of them the user chose."""
        script = Script(iter([0.95]))
        running = trainer(callback, script, **callback.batch_arguments(**arguments))
        running.train()
        assert script.sizes == [size] * (EXAMPLES // size)
        assert running.state.global_step == 4

    def test_accumulated_steps_are_one_step(self, bso: BatchSizeOptimizer) -> None:
        """A step for the listener is an update of the weights."""
        events: list[str] = []
        callback = WattwiseCallback(bso, "eval_accuracy", power=Listener(events))
        trainer(callback, Script(iter([0.95])), **callback.batch_arguments(gradient_accumulation_steps=2)).train()
        assert events == [*["begin", "end"] * 4, "epoch", "over"]

    def test_size_that_does_not_fit(self, callback: WattwiseCallback) -> None:
        """A size per device that does not divide the batch size is refused at once; the error names those that do."""
        with pytest.raises(TrainerSetupError, match=r"per_device_train_batch_size to one of 1, 2, 4, 8, 16"):
            callback.batch_arguments(per_device_train_batch_size=6)
        with pytest.raises(TrainerSetupError, match="is 32"):
            callback.batch_arguments(per_device_train_batch_size=8, gradient_accumulation_steps=4)

    @pytest.mark.parametrize(
        ("arguments", "fault"),
        [
            ({}, "16.* 8 .*per_device_train_batch_size=8 on 1 device"),
            ({"gradient_accumulation_steps": 4}, "32 .*gradient_accumulation_steps=4"),
            ({"eval_strategy": "no"}, "eval_strategy is 'no'.*eval_strategy=\"epoch\""),
            ({"eval_strategy": "steps", "eval_steps": 2}, r"eval_steps=callback\.steps"),
            ({"eval_delay": 2}, "eval_delay is 2"),
            ({"auto_find_batch_size": True}, "auto_find_batch_size"),
            ({"accelerator_config": {"split_batches": True}}, "split_batches"),
        ],
    )
    def test_arguments_that_do_not_fit(
        self, callback: WattwiseCallback, client: Client, arguments: dict[str, Any], fault: str
    ) -> None:
        """Arguments with another batch size, or that do not report every epoch, are refused before training."""
        script = Script(itertools.repeat(0.1))
        with pytest.raises(TrainerSetupError, match=fault):
            trainer(callback, script, per_device_train_batch_size=8, **arguments).train()
        assert not script.sizes
        assert not epochs(client, callback.bso.trial)

    @pytest.mark.parametrize("found", [1, 2])
    def test_several_gpus_of_one_process(self, callback: WattwiseCallback, found: int) -> None:
        """The GPUs over which one process splits a batch count as devices."""
        args = TrainingArguments(use_cpu=True, eval_strategy="epoch", **callback.batch_arguments(devices=2))
        # As many as PyTorch found.
        args._n_gpu = found  # noqa: SLF001 - the Trainer's
        with contextlib.nullcontext() if found == 2 else pytest.raises(TrainerSetupError, match="is 8"):
            callback.on_train_begin(args, TrainerState(num_train_epochs=10), TrainerControl())

    def test_other_evaluations_are_not_reported(self, callback: WattwiseCallback, client: Client) -> None:
        """Evaluations before the first epoch and outside of the training are not reported."""
        script = Script(iter([1.0, 1.0, 0.1, 0.95, 1.0]))
        running = trainer(callback, script, eval_on_start=True, **callback.batch_arguments())
        running.evaluate()
        running.train()
        running.evaluate()
        assert epochs(client, callback.bso.trial) == [1, 2]

    def test_several_evaluation_sets(self, bso: BatchSizeOptimizer, client: Client) -> None:
        """Of several evaluation sets, the one with the metric is reported, once per epoch."""
        callback = WattwiseCallback(bso, "eval_second_accuracy")
        running = trainer(callback, Script(iter([1.0, 0.1, 1.0, 0.95])), **callback.batch_arguments())
        running.eval_dataset = {"first": DATA[:8], "second": DATA[8:16]}
        running.train()
        assert epochs(client, bso.trial) == [1, 2]

    def test_two_ranks(self, grpc_server: LiveServer, client: Client) -> None:
        """Two processes train together with half of the batch size each, and stop in the same epoch."""
        assert two_ranks(self.name, grpc_server.address) == [str([8] * 12)] * 2
        (trial,) = client.trials(f"test-ranks-{self.name}")
        assert (trial.converged, trial.newest.epoch) == (True, 3)

    def test_ranks_that_do_not_know_of_each_other(
        self, grpc_server: LiveServer, client: Client, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Processes of a launcher that are not connected yet do not ask for a trial."""
        monkeypatch.setenv("WORLD_SIZE", "2")
        spec = job_spec()
        with pytest.raises(TrainerSetupError, match=r"torch.distributed.init_process_group\(\)"):
            WattwiseCallback(BatchSizeOptimizer(grpc_server.address, spec, monitor=StepMonitor()), "eval_accuracy")
        assert spec.job_id not in [row.job.spec.job_id for row in client.jobs()]


@pytest.mark.parametrize("kind", SPECIAL)
def test_checkpoint_that_is_none(tmp_path: Path, kind: str) -> None:
    """A training does not wait for a pipe in place of a checkpoint's state."""
    SPECIAL[kind](tmp_path / "trainer_state.json")
    with pytest.raises(TrainerSetupError, match=str(tmp_path)):
        saved_state(tmp_path)


@pytest.mark.parametrize("content", ["[" * 100_000, "{", '{"a": 1, "a": 2}'])
def test_checkpoint_that_cannot_be_read(tmp_path: Path, content: str) -> None:
    """Malformed JSON is a fault of the checkpoint."""
    (tmp_path / "trainer_state.json").write_text(content)
    with pytest.raises(TrainerSetupError, match=str(tmp_path)):
        saved_state(tmp_path)


@pytest.mark.parametrize(
    "content", ["[]", '{"stateful_callbacks": []}', '{"stateful_callbacks": {"wattwise": 1}}', '{"log_history": [NaN]}']
)
def test_checkpoint_without_a_trial(tmp_path: Path, content: str) -> None:
    """A state of other types than ours has no trial."""
    (tmp_path / "trainer_state.json").write_text(content)
    assert saved_state(tmp_path) is None
