"""TRL's command line: its options are those for the job's default batch size."""

from __future__ import annotations

from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.trainers,
    # TRL's own, which its users see too.
    pytest.mark.filterwarnings("ignore:`gradient_checkpointing` is deprecated:FutureWarning"),
]
for library in ("trl", "datasets"):
    pytest.importorskip(library, reason=f"needs {library}: make test-trainers")

from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedTokenizerFast
from trl import ModelConfig, ScriptArguments, SFTConfig, SFTTrainer, TrlParser
from wattwise import BatchSizeOptimizer, Client, EndReason
from wattwise.integrations.huggingface import WattwiseCallback

from tests.client.training.script import StepMonitor, job_spec
from tests.live_server import LiveServer

OPTIONS = (
    "--model_name_or_path tiny --dataset_name words --learning_rate 2.0e-5 --num_train_epochs 30 "
    "--per_device_train_batch_size 2 --gradient_accumulation_steps 8 --eval_strategy steps --eval_steps 6 "
    "--bf16 False --report_to none --save_strategy no --dataloader_pin_memory False --disable_tqdm True"
)
"""As in the documentation of TRL's `sft.py`: 2 examples per device, 8 accumulated steps, evaluations every N steps."""

WORDS = ["<pad>", "<eos>", "red", "green", "blue"]


def sft_trainer(args: SFTConfig, callback: WattwiseCallback) -> SFTTrainer:
    """A small model and 64 sentences."""
    tokens = Tokenizer(models.WordLevel({word: number for number, word in enumerate(WORDS)}))
    tokens.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=tokens)
    tokenizer.add_special_tokens({"pad_token": "<pad>", "eos_token": "<eos>"})
    config = LlamaConfig(
        vocab_size=len(WORDS),
        hidden_size=8,
        intermediate_size=8,
        num_hidden_layers=1,
        num_attention_heads=1,
        pad_token_id=0,
        eos_token_id=1,
    )
    data = Dataset.from_list([{"text": "red green blue"}] * 64)
    return SFTTrainer(
        model=AutoModelForCausalLM.from_config(config),
        args=args,
        train_dataset=data,
        eval_dataset=data.select(range(4)),
        processing_class=tokenizer,
        callbacks=[callback],
    )


@pytest.mark.parametrize("size", [8, 16, 32])
def test_command_of_trl(grpc_server: LiveServer, tmp_path: Path, size: int) -> None:
    """The evaluations every N steps become evaluations every N * 16 examples, and the accumulated steps stay."""
    job = job_spec(job_id=f"test-trl-{size}", target_metric=100.0, higher_is_better=False)
    with BatchSizeOptimizer(grpc_server.address, job, monitor=StepMonitor()) as first:
        first.get_batch_size()
        first.close(EndReason.PREEMPTED)
    with Client(grpc_server.address) as client:
        client.set_pinned_batch_size(first.trial.job_id, size)
    parser = TrlParser((ScriptArguments, SFTConfig, ModelConfig))
    _, args, _ = parser.parse_args_and_config([*OPTIONS.split(), "--output_dir", str(tmp_path)])
    with BatchSizeOptimizer(grpc_server.address, job, monitor=StepMonitor()) as bso:
        callback = WattwiseCallback(bso, "eval_loss")
        args = callback.apply(args)
        assert (args.per_device_train_batch_size, args.gradient_accumulation_steps) == (size // 8, 8)
        trainer = sft_trainer(args, callback)
        trainer.train()
    assert bso.target_reached
    assert bso.trial.batch_size == size
    # The first evaluation reaches the target.
    assert trainer.state.global_step * size == 6 * 16
