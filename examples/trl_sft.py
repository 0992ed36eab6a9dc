"""TRL's SFTTrainer with the options of TRL's `sft.py`: a small language model that learns to finish sentences.

The options are those for the job's default batch size:

    trl_sft.py --learning_rate 3e-3 --gradient_accumulation_steps 4 --eval_strategy steps --eval_steps 20
"""

import itertools
import os
import tempfile

import torch
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedTokenizerFast
from trl import SFTConfig, SFTTrainer, TrlParser
from wattwise import (
    Attempt,
    BatchSizeOptimizer,
    EstimateMonitor,
    JobSpec,
    NvmlMonitor,
    fit_attempts,
    scaled_learning_rate,
)
from wattwise.integrations.huggingface import WattwiseCallback

parser = TrlParser(SFTConfig)
parser.add_argument("--server", default=os.environ.get("WATTWISE_SERVER", "localhost:50051"))
parser.set_defaults(
    output_dir=f"{tempfile.gettempdir()}/sentences-trl",
    learning_rate=3e-3,
    gradient_accumulation_steps=2,
    eval_strategy="steps",
    eval_steps=20,
    max_steps=400,
    warmup_steps=20,
    save_strategy="no",
    logging_strategy="no",
    report_to=[],
    disable_tqdm=True,
    bf16=False,
    dataloader_pin_memory=False,
)
server = parser.parse_args_and_config()[1].server

job = JobSpec(
    job_id="sentences-trl",
    batch_sizes=[8, 16, 32],
    default_batch_size=16,
    # The loss per word of the completions, in nats: lower is better.
    target_metric=0.05,
    higher_is_better=False,
    # As many evaluations as the options above have.
    max_epochs=20,
)
# Without a GPU, energy is estimated as 65 W times time.
monitor = NvmlMonitor() if torch.cuda.is_available() else EstimateMonitor(watts=65)

people, deeds = ["ada", "grace", "alan", "kurt"], {"counts": "stones", "paints": "stars", "lifts": "clocks"}
times = ["today", "now", "again", "often", "alone"]
sentences = [
    {"prompt": f"{time} {person} {deed}", "completion": f" {thing} for {person}"}
    for person, (deed, thing), time, _ in itertools.product(people, deeds.items(), times, range(8))
]
data = Dataset.from_list(sentences).train_test_split(0.2, seed=0)
words = ["<pad>", "<eos>", "for", *people, *deeds, *deeds.values(), *times]
tokens = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}))
tokens.pre_tokenizer = pre_tokenizers.Whitespace()
tokenizer = PreTrainedTokenizerFast(tokenizer_object=tokens)
tokenizer.add_special_tokens({"pad_token": "<pad>", "eos_token": "<eos>"})
config = LlamaConfig(
    vocab_size=len(words),
    hidden_size=32,
    intermediate_size=64,
    num_hidden_layers=2,
    num_attention_heads=4,
    pad_token_id=0,
    eos_token_id=1,
)


def fit(attempt: Attempt) -> SFTTrainer:
    """Parses the options, builds a model and a trainer, and trains."""
    callback = WattwiseCallback(bso, metric="eval_loss")
    size, default = callback.batch_size, job.default_batch_size
    print(f"Batch size {size}: {bso.trial.reason}")
    # Sets the batch size, keeps the accumulated steps, and scales the numbers of steps.
    args = callback.apply(parser.parse_args_and_config()[0])
    args.learning_rate = scaled_learning_rate(
        args.learning_rate, batch_size=size, default_batch_size=default, optimizer=args.optim
    )
    args.seed += attempt.seed_offset
    torch.manual_seed(args.seed)
    trainer = SFTTrainer(
        model=AutoModelForCausalLM.from_config(config),
        args=args,
        train_dataset=data["train"],
        eval_dataset=data["test"],
        processing_class=tokenizer,
        callbacks=[callback],
    )
    trainer.train()
    return trainer


with BatchSizeOptimizer(server, job, monitor=monitor) as bso:
    fit_attempts(bso, fit)
    print(bso.decision.message)
