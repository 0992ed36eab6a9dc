"""One launch of the job: a small neural network on scikit-learn's handwritten digits.

Exits with status 0 if the model reached its target, 3 if it did not.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Iterator, Sequence

import numpy as np
from sklearn.datasets import load_digits
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import log_loss
from sklearn.model_selection import train_test_split
from sklearn.neural_network import MLPClassifier
from wattwise import BatchSizeOptimizer, JobSpec
from wattwise.errors import TrainFailError

from examples.digits.job import TARGET_MISSED, job_spec
from examples.digits.monitor import energy_monitor


def split(seed: int) -> Sequence[np.ndarray]:
    """Returns the images for training and for validation, then their digits."""
    images, digits = load_digits(return_X_y=True)
    x, x_val, y, y_val = train_test_split(images / 16, digits, test_size=0.25, stratify=digits, random_state=seed)
    return x, x_val, y, y_val


def losses(data: Sequence[np.ndarray], batch_size: int, seed: int) -> Iterator[float]:
    """Trains on and on; yields the validation loss after each epoch."""
    x, x_val, y, y_val = data
    # Adam's learning rate scales with the square root of the batch size.
    rate = 0.001 * (batch_size / 32) ** 0.5
    model = MLPClassifier((512,), batch_size=batch_size, learning_rate_init=rate, random_state=seed)
    while True:
        model.partial_fit(x, y, classes=range(10))
        yield float(log_loss(y_val, model.predict_proba(x_val)))


def train(server: str, spec: JobSpec, seed: int, timeout: float) -> int:
    """Trains once; returns the exit status. Waits up to `timeout` seconds for the server."""
    data = split(seed)
    with BatchSizeOptimizer(server, spec, monitor=energy_monitor(), timeout=timeout) as bso:
        epochs = losses(data, bso.get_batch_size(), seed)
        print(bso.trial.reason, flush=True)
        bso.on_train_begin()
        try:
            while not bso.training_finished:
                bso.on_evaluate(next(epochs))
        except TrainFailError:
            return TARGET_MISSED
        return 0 if bso.target_reached else TARGET_MISSED


def main() -> int:
    """Reads the arguments and trains."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--server", default="localhost:50051", help="the server's address")
    parser.add_argument("--job-id", default="digits-nightly", help="the job id, the same for every launch")
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[8, 16, 32, 64, 128, 256, 512, 1024])
    parser.add_argument("--default", type=int, default=16, help="the batch size used so far")
    parser.add_argument("--seed", type=int, default=0, help="seed of split, weights and data order")
    parser.add_argument("--timeout", type=float, default=60.0, help="seconds to wait for the server")
    args = parser.parse_args()
    # Each call trains one epoch by design.
    warnings.filterwarnings("ignore", category=ConvergenceWarning)
    spec = job_spec(args.job_id, args.batch_sizes, args.default)
    return train(args.server, spec, args.seed, args.timeout)


if __name__ == "__main__":
    sys.exit(main())
