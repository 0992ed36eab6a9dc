"""A plain training loop in PyTorch, on scikit-learn's handwritten digits."""

import argparse
import os

import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch.nn.functional import cross_entropy
from torch.utils.data import TensorDataset
from wattwise import BatchSizeOptimizer, EstimateMonitor, JobSpec, NvmlMonitor, data_loader, scaled_learning_rate

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--server", default=os.environ.get("WATTWISE_SERVER", "localhost:50051"))
server = parser.parse_args().server

job = JobSpec(
    job_id="digits-pytorch",
    batch_sizes=[16, 32, 64, 128, 256],
    default_batch_size=64,
    target_metric=0.95,
    max_epochs=50,
)
# Without a GPU, energy is estimated as 65 W times time.
monitor = NvmlMonitor() if torch.cuda.is_available() else EstimateMonitor(watts=65)
device = "cuda" if torch.cuda.is_available() else "cpu"

images, digits = load_digits(return_X_y=True)
images, digits = torch.tensor(images / 16, dtype=torch.float32), torch.tensor(digits)
x, x_val, y, y_val = train_test_split(images, digits, random_state=0)
x_val, y_val = x_val.to(device), y_val.to(device)

with BatchSizeOptimizer(server, job, monitor=monitor) as bso:
    # Until a trial reaches the target, the next one trains a new model.
    for attempt in bso.attempts():
        print(f"Batch size {attempt.batch_size}: {attempt.trial.reason}")
        torch.manual_seed(attempt.seed_offset)
        model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10)).to(device)
        loader = data_loader(bso, TensorDataset(x, y), shuffle=True)
        # Adam's learning rate goes with the square root of the batch size.
        rate = scaled_learning_rate(0.001, batch_size=attempt.batch_size, default_batch_size=64, optimizer="adam")
        optimizer = torch.optim.Adam(model.parameters(), lr=rate)

        for _ in attempt.epochs():
            for inputs, labels in loader:
                optimizer.zero_grad()
                cross_entropy(model(inputs.to(device)), labels.to(device)).backward()
                optimizer.step()
            with torch.no_grad():
                accuracy = (model(x_val).argmax(dim=1) == y_val).float().mean()
            attempt.on_evaluate(accuracy)

    print(bso.decision.message)
