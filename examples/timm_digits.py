"""A model, an optimizer and a schedule of timm, with options as its `train.py` has them, on handwritten digits."""

import argparse
import os
from pathlib import Path

import timm
import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from timm.models import resume_checkpoint
from timm.optim import create_optimizer_v2
from timm.scheduler import create_scheduler_v2
from timm.utils import AverageMeter, accuracy
from torch.nn.functional import cross_entropy, interpolate
from torch.utils.data import TensorDataset
from wattwise import BatchSizeOptimizer, EstimateMonitor, JobSpec, NvmlMonitor, data_loader, scaled_learning_rate

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--server", default=os.environ.get("WATTWISE_SERVER", "localhost:50051"))
parser.add_argument("--model", default="test_resnet")
parser.add_argument("--opt", default="adamw")
parser.add_argument("--lr-base", type=float, default=3e-3, help="learning rate for the batch size --lr-base-size")
parser.add_argument("--lr-base-size", type=int, default=64)
parser.add_argument("--sched", default="cosine")
parser.add_argument("--epochs", type=int, default=20)
parser.add_argument("--warmup-epochs", type=int, default=1)
parser.add_argument("--output", type=Path, help="folder for a checkpoint after every epoch")
parser.add_argument("--resume", type=Path, help="checkpoint to continue")
args = parser.parse_args()

job = JobSpec(
    job_id_prefix="digits",
    job_id="digits-timm",
    batch_sizes=[32, 64, 128],
    default_batch_size=64,
    # In percent, as timm counts.
    target_metric=90.0,
    max_epochs=args.epochs,
)
# Without a GPU, energy is estimated as 65 W times time.
monitor = NvmlMonitor() if torch.cuda.is_available() else EstimateMonitor(watts=65)
device = "cuda" if torch.cuda.is_available() else "cpu"

data = load_digits()
images = interpolate(torch.tensor(data.images[:, None] / 16, dtype=torch.float32), size=32, mode="bilinear")
x, x_val, y, y_val = train_test_split(images, torch.tensor(data.target), random_state=0)


def train_one_epoch(model, loader, optimizer):
    """Returns the mean loss."""
    losses = AverageMeter()
    model.train()
    for inputs, labels in loader:
        optimizer.zero_grad()
        loss = cross_entropy(model(inputs.to(device)), labels.to(device))
        loss.backward()
        optimizer.step()
        losses.update(loss.item(), len(labels))
    return losses.avg


def validate(model):
    """Returns the accuracy in percent."""
    model.eval()
    with torch.no_grad():
        (top1,) = accuracy(model(x_val.to(device)), y_val.to(device))
    return top1.item()


with BatchSizeOptimizer(args.server, job, monitor=monitor) as bso:
    resume = args.resume
    if resume:
        # The trial of the checkpoint goes on, with its batch size.
        bso.load_state_dict(torch.load(resume)["wattwise"])
    try:
        for attempt in bso.attempts():
            print(f"Batch size {attempt.batch_size}: {attempt.trial.reason}")
            torch.manual_seed(attempt.seed_offset)
            model = timm.create_model(args.model, num_classes=10, in_chans=1).to(device)
            loader = data_loader(bso, TensorDataset(x, y), shuffle=True)
            rate = scaled_learning_rate(
                args.lr_base, batch_size=attempt.batch_size, default_batch_size=args.lr_base_size, optimizer=args.opt
            )
            optimizer = create_optimizer_v2(model, opt=args.opt, lr=rate)
            scheduler, _ = create_scheduler_v2(
                optimizer, args.sched, num_epochs=args.epochs, warmup_epochs=args.warmup_epochs
            )
            if resume:
                resume_checkpoint(model, resume, optimizer)
                resume = None
            scheduler.step(bso.last_epoch)

            for epoch in attempt.epochs():
                loss = train_one_epoch(model, loader, optimizer)
                top1 = validate(model)
                scheduler.step(epoch, top1)
                print(f"epoch {epoch}: loss {loss:.3f}, accuracy {top1:.1f} %")
                attempt.on_evaluate(top1)
                if args.output:
                    parts = {"state_dict": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch}
                    torch.save(parts | {"wattwise": bso.state_dict()}, args.output / "last.pth.tar")
        print(bso.decision.message)
    except KeyboardInterrupt:
        # The trial ends as preempted.
        pass
