"""One trial: a small neural network on scikit-learn's handwritten digits, launched by `wattwise run`."""

from __future__ import annotations

import os
import warnings

from sklearn.datasets import load_digits
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import log_loss
from sklearn.model_selection import train_test_split
from sklearn.neural_network import MLPClassifier
from wattwise import BatchSizeOptimizer


def main() -> None:
    """Trains until the trial is decided."""
    seed = int(os.environ["WATTWISE_SEED"])
    rate = float(os.environ["WATTWISE_LEARNING_RATE"])
    images, digits = load_digits(return_X_y=True)
    x, x_val, y, y_val = train_test_split(images / 16, digits, test_size=0.25, stratify=digits, random_state=seed)
    bso = BatchSizeOptimizer.from_env()
    batch_size = bso.get_batch_size()
    print(f"Batch size {batch_size}: {bso.trial.reason}; learning rate {rate:g}, seed {seed}")
    model = MLPClassifier((512,), batch_size=batch_size, learning_rate_init=rate, random_state=seed)
    bso.on_train_begin()
    epoch = 0
    while not bso.training_finished:
        model.partial_fit(x, y, classes=range(10))
        loss = log_loss(y_val, model.predict_proba(x_val))
        epoch += 1
        print(f"epoch {epoch}: log loss {loss:.4f}")
        bso.on_evaluate(loss)


if __name__ == "__main__":
    # Each call trains one epoch by design.
    warnings.filterwarnings("ignore", category=ConvergenceWarning)
    main()
