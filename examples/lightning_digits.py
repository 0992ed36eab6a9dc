"""Lightning's Trainer, on scikit-learn's handwritten digits."""

import argparse
import os

import lightning.pytorch as pl
import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset
from wattwise import (
    Attempt,
    BatchSizeOptimizer,
    EstimateMonitor,
    JobSpec,
    NvmlMonitor,
    fit_attempts,
    scaled_learning_rate,
)
from wattwise.integrations.lightning import WattwiseCallback

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--server", default=os.environ.get("WATTWISE_SERVER", "localhost:50051"))
server = parser.parse_args().server

job = JobSpec(
    job_id="digits-lightning",
    batch_sizes=[16, 32, 64, 128, 256],
    default_batch_size=64,
    target_metric=0.95,
    max_epochs=50,
)
# Without a GPU, energy is estimated as 65 W times time.
monitor = NvmlMonitor() if torch.cuda.is_available() else EstimateMonitor(watts=65)


class Classifier(pl.LightningModule):
    """Two layers."""

    def __init__(self, learning_rate: float) -> None:
        super().__init__()
        self.learning_rate = learning_rate
        self.layers = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10))

    def training_step(self, batch):
        images, digits = batch
        return cross_entropy(self.layers(images), digits)

    def validation_step(self, batch):
        images, digits = batch
        self.log("val_accuracy", (self.layers(images).argmax(dim=1) == digits).float().mean(), sync_dist=True)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), self.learning_rate)


images, digits = load_digits(return_X_y=True)
images, digits = torch.tensor(images / 16, dtype=torch.float32), torch.tensor(digits)
x, x_val, y, y_val = train_test_split(images, digits, random_state=0)


def fit(attempt: Attempt) -> Classifier:
    """Builds a model and a trainer, and trains."""
    callback = WattwiseCallback(bso, metric="val_accuracy")
    print(f"Batch size {callback.batch_size}: {bso.trial.reason}")
    pl.seed_everything(attempt.seed_offset)
    rate = scaled_learning_rate(0.001, batch_size=callback.batch_size, default_batch_size=64, optimizer="adam")
    model = Classifier(rate)
    train = DataLoader(TensorDataset(x, y), callback.loader_batch_size(), shuffle=True)
    validation = DataLoader(TensorDataset(x_val, y_val), len(x_val))
    trainer = pl.Trainer(
        max_epochs=job.max_epochs, devices=1, logger=False, enable_checkpointing=False, callbacks=[callback]
    )
    trainer.fit(model, train, validation)
    return model


with BatchSizeOptimizer(server, job, monitor=monitor) as bso:
    fit_attempts(bso, fit)
    print(bso.decision.message)
