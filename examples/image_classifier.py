"""A script with options, meters, a schedule and `--resume`, as timm's `train.py` is built, on handwritten digits."""

import argparse
import os
from pathlib import Path
from typing import Any

import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch.nn.functional import cross_entropy
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, SequentialLR
from torch.utils.data import TensorDataset
from wattwise import BatchSizeOptimizer, EstimateMonitor, JobSpec, NvmlMonitor, data_loader, scaled_learning_rate

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--server", default=os.environ.get("WATTWISE_SERVER", "localhost:50051"))
parser.add_argument("--width", type=int, default=32)
parser.add_argument("--opt", default="AdamW", choices=["SGD", "Adam", "AdamW", "RMSprop"])
parser.add_argument("--lr-base", type=float, default=3e-3, help="learning rate for the batch size --lr-base-size")
parser.add_argument("--lr-base-size", type=int, default=64)
parser.add_argument("--epochs", type=int, default=20)
parser.add_argument("--warmup-epochs", type=int, default=1)
parser.add_argument("--output", type=Path, help="folder for a checkpoint after every epoch")
parser.add_argument("--resume", type=Path, help="checkpoint to continue")
args = parser.parse_args()

job = JobSpec(
    job_id="digits-image-classifier",
    batch_sizes=[32, 64, 128],
    default_batch_size=64,
    # In percent.
    target_metric=95.0,
    max_epochs=args.epochs,
)
# Without a GPU, energy is estimated as 65 W times time.
monitor = NvmlMonitor() if torch.cuda.is_available() else EstimateMonitor(watts=65)
device = "cuda" if torch.cuda.is_available() else "cpu"

data = load_digits()
images = torch.tensor(data.images[:, None] / 16, dtype=torch.float32)
x, x_val, y, y_val = train_test_split(images, torch.tensor(data.target), random_state=0)
x_val, y_val = x_val.to(device), y_val.to(device)


class AverageMeter:
    """The mean of values with weights."""

    def __init__(self) -> None:
        self.sum = self.count = 0.0

    def update(self, value: float, number: int) -> None:
        """Adds a value that is the mean of `number` values."""
        self.sum, self.count = self.sum + value * number, self.count + number

    @property
    def avg(self) -> float:
        return self.sum / self.count


def create_model() -> torch.nn.Module:
    """Returns a small convolutional network."""
    layers = [torch.nn.Conv2d(1, args.width, 3), torch.nn.BatchNorm2d(args.width), torch.nn.ReLU()]
    return torch.nn.Sequential(*layers, torch.nn.Flatten(), torch.nn.Linear(36 * args.width, 10)).to(device)


def train_one_epoch(model: Any, loader: Any, optimizer: Any) -> float:
    """Returns the mean loss."""
    losses = AverageMeter()
    model.train()
    for inputs, labels in loader:
        optimizer.zero_grad()
        loss = cross_entropy(model(inputs.to(device)), labels.to(device))
        loss.backward()
        optimizer.step()
        losses.update(float(loss), len(labels))
    return losses.avg


def validate(model: Any) -> float:
    """Returns the accuracy in percent."""
    model.eval()
    with torch.no_grad():
        return 100 * float((model(x_val).argmax(dim=1) == y_val).float().mean())


with BatchSizeOptimizer(args.server, job, monitor=monitor) as bso:
    saved = torch.load(args.resume) if args.resume else None
    if saved:
        # The trial of the checkpoint goes on, with its batch size.
        bso.load_state_dict(saved["wattwise"])
    try:
        for attempt in bso.attempts():
            print(f"Batch size {attempt.batch_size}: {attempt.trial.reason}")
            torch.manual_seed(attempt.seed_offset)
            model, loader = create_model(), data_loader(bso, TensorDataset(x, y), shuffle=True)
            size, default = attempt.batch_size, args.lr_base_size
            rate = scaled_learning_rate(args.lr_base, batch_size=size, default_batch_size=default, optimizer=args.opt)
            optimizer = getattr(torch.optim, args.opt)(model.parameters(), lr=rate)
            warmup = LinearLR(optimizer, 0.1, total_iters=args.warmup_epochs)
            cosine = CosineAnnealingLR(optimizer, args.epochs - args.warmup_epochs)
            scheduler = SequentialLR(optimizer, [warmup, cosine], [args.warmup_epochs])
            parts = {"model": model, "optimizer": optimizer, "scheduler": scheduler}
            if saved:
                for name, part in parts.items():
                    part.load_state_dict(saved[name])
                saved = None

            for epoch in attempt.epochs():
                loss = train_one_epoch(model, loader, optimizer)
                top1 = validate(model)
                scheduler.step()
                print(f"epoch {epoch}: loss {loss:.3f}, accuracy {top1:.1f} %")
                attempt.on_evaluate(top1)
                if args.output:
                    states = {name: part.state_dict() for name, part in parts.items()}
                    torch.save({**states, "wattwise": bso.state_dict()}, args.output / "last.pt")
        print(bso.decision.message)
    except KeyboardInterrupt:
        # The trial ends as preempted.
        pass
