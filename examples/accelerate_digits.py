"""A loop with Hugging Face's accelerate and its checkpoints, on scikit-learn's handwritten digits.

With several processes: `accelerate launch examples/accelerate_digits.py`, or torchrun.
"""

import argparse
import os
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset
from wattwise import BatchSizeOptimizer, EstimateMonitor, JobSpec, NvmlMonitor, scaled_learning_rate

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--server", default=os.environ.get("WATTWISE_SERVER", "localhost:50051"))
parser.add_argument("--gradient_accumulation_steps", type=int, default=2)
parser.add_argument("--checkpointing_steps", type=int, help="batches between two checkpoints; omitted: none are saved")
parser.add_argument("--output_dir", type=Path, default=Path())
parser.add_argument("--resume_from_checkpoint", type=Path, help="a folder that was saved, such as step_40")
args = parser.parse_args()

job = JobSpec(
    job_id="digits-accelerate",
    batch_sizes=[16, 32, 64, 128, 256],
    default_batch_size=64,
    target_metric=0.95,
    max_epochs=50,
)
images, digits = load_digits(return_X_y=True)
images, digits = torch.tensor(images / 16, dtype=torch.float32), torch.tensor(digits)
x, x_val, y, y_val = train_test_split(images, digits, random_state=0)

# Connects the processes, so it comes before the batch size. Without a GPU it does so only if cpu is true.
accelerator = Accelerator(
    cpu=not torch.cuda.is_available(), gradient_accumulation_steps=args.gradient_accumulation_steps
)
# Without a GPU, energy is estimated as 65 W times time.
monitor = NvmlMonitor() if torch.cuda.is_available() else EstimateMonitor(watts=65)

with BatchSizeOptimizer(args.server, job, monitor=monitor) as bso:
    checkpoint = args.resume_from_checkpoint
    if checkpoint:
        # The trial of the checkpoint goes on, with its batch size.
        bso.load_state_dict(torch.load(checkpoint / "custom_checkpoint_0.pkl"))
    accelerator.register_for_checkpointing(bso)

    for attempt in bso.attempts():
        accelerator.print(f"Batch size {attempt.batch_size}: {attempt.trial.reason}")
        set_seed(attempt.seed_offset)
        # What one process passes to its device at once.
        size, rest = divmod(attempt.trial.per_rank_batch_size, accelerator.gradient_accumulation_steps)
        if rest:
            raise ValueError(f"--gradient_accumulation_steps must divide {attempt.trial.per_rank_batch_size}")
        model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10))
        rate = scaled_learning_rate(0.001, batch_size=attempt.batch_size, default_batch_size=64, optimizer="adamw")
        # The models of earlier attempts do not belong into the checkpoints.
        accelerator.free_memory()
        model, optimizer, loader, validation = accelerator.prepare(
            model,
            torch.optim.AdamW(model.parameters(), lr=rate),
            DataLoader(TensorDataset(x, y), size, shuffle=True),
            DataLoader(TensorDataset(x_val, y_val), 128),
        )
        step = 0
        if checkpoint:
            accelerator.load_state(checkpoint)
            step, checkpoint = int(checkpoint.name.removeprefix("step_")), None

        for epoch in attempt.epochs():
            model.train()
            # A checkpoint may lie in the middle of an epoch.
            for inputs, labels in accelerator.skip_first_batches(loader, step - (epoch - 1) * len(loader)):
                with accelerator.accumulate(model):
                    accelerator.backward(cross_entropy(model(inputs), labels))
                    optimizer.step()
                    optimizer.zero_grad()
                step += 1
                if args.checkpointing_steps and step % args.checkpointing_steps == 0:
                    accelerator.save_state(args.output_dir / f"step_{step}")
            model.eval()
            correct = 0
            for inputs, labels in validation:
                with torch.no_grad():
                    guesses = model(inputs).argmax(dim=1)
                correct += accelerator.gather_for_metrics(guesses == labels).sum().item()
            attempt.on_evaluate(correct / len(y_val))

    accelerator.print(bso.decision.message)
